// Where the libraries of a CUDA toolkit may lie: NVRTC, cuBLASLt. They are opened at run time, from wherever this machine has them.
#pragma once

#include <string>
#include <vector>

namespace kvloom {

struct CudaLibrary {
  const char* variable;            // of the environment, "KVLOOM_NVRTC": a file or a folder; if set, nothing else is tried
  std::vector<std::string> files;  // "libnvrtc.so.13", the newest first
  const char* package;             // of Python, until CUDA 12: "cuda_nvrtc"; from 13 on all of them are in "cu13"
};

/// Paths to try, in order: the variable's, else the loader's (a name without a slash), toolkits', Python packages'.
std::vector<std::string> library_paths(const CudaLibrary& library);

}  // namespace kvloom
