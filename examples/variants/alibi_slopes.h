// ALiBi with slopes of the caller's own, one a query head: a learned or a stretched set, a rank's share of the heads.
struct AlibiSlopes {
  struct Params {
    kvloom::Array<float, kvloom::dim::qo_heads> slopes;
    KVLOOM_PARAMS(KVLOOM_PARAM(slopes, 0.01, 0.5))
  };

  static float slope(const kvloom::Coord& c, const Params& p) { return p.slopes(c.q_head); }

  static float logit(float score, const kvloom::Coord& c, const Params& p) {
    return score + slope(c, p) * float(c.kv_pos - c.q_pos);
  }
};
KVLOOM_VARIANT(AlibiSlopes)
