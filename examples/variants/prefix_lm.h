// Prefix LM: the first prefix[request] keys are seen by every query of the request, the others causally.
struct PrefixLm {
  struct Params {
    kvloom::Array<int32_t, kvloom::dim::requests> prefix;
    KVLOOM_PARAMS(KVLOOM_PARAM(prefix, 0, 40))
  };

  static bool keep(const kvloom::Coord& c, const Params& p) { return c.kv_pos <= c.q_pos || c.kv_pos < p.prefix(c.request); }
};
KVLOOM_VARIANT(PrefixLm)
