// Soft-capped logits and a learned sink a head: the softmax's denominator gains exp(sink), once a row.
struct SoftCapSink {
  struct Params {
    kvloom::Array<float, kvloom::dim::qo_heads> sinks;
    float cap;
    KVLOOM_PARAMS(KVLOOM_PARAM(sinks, -2, 2), KVLOOM_PARAM(cap, 10, 50))
  };

  static float logit(float score, const kvloom::Coord&, const Params& p) { return p.cap * kvloom::tanh_of(score / p.cap); }

  static kvloom::RowFinish finish(float lse, int32_t q_head, const Params& p) { return kvloom::sink_weights(lse, p.sinks(q_head)); }
};
KVLOOM_VARIANT(SoftCapSink)
