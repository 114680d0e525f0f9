// FlashSigmoid (arXiv 2409.04431) with a bias a head: no softmax; every key has its weight by itself, and weights add up.
struct FlashSigmoid {
  struct Params {
    kvloom::Array<float, kvloom::dim::qo_heads> bias;
    KVLOOM_PARAMS(KVLOOM_PARAM(bias, -4, 0))
  };

  static constexpr kvloom::Reduction reduction = kvloom::Reduction::sum;

  static float logit(float score, const kvloom::Coord& c, const Params& p) { return score + p.bias(c.q_head); }
  static float weight(float logit, const Params&) { return kvloom::sigmoid_of(logit); }
};
KVLOOM_VARIANT(FlashSigmoid)
