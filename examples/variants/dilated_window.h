// Dilated sliding window (Longformer): of the last 256 keys, its own included, a query sees every `dilation`-th.
struct DilatedWindow {
  struct Params {
    int32_t dilation;
    KVLOOM_PARAMS(KVLOOM_PARAM(dilation, 1, 5))
  };

  // Data, not code: keys outside it are neither read nor planned for.
  static constexpr kvloom::KeyRange range{.causal = true, .left = 255};

  static bool keep(const kvloom::Coord& c, const Params& p) { return (c.q_pos - c.kv_pos) % p.dilation == 0; }
};
KVLOOM_VARIANT(DilatedWindow)
