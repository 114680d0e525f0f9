// A driver of 2021 in the place of libcuda.so.1: it has its version, and nothing that came later.
extern "C" __attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = 11020;
  return 0;
}
