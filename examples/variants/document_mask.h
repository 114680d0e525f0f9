// Packed documents: a query sees the keys of its own document, up to itself. `document` says which one each position of a request is in.
struct DocumentMask {
  struct Params {
    kvloom::Array<int32_t, kvloom::dim::requests, kvloom::dim::any> document;  // [request, position]
    KVLOOM_PARAMS(KVLOOM_PARAM(document, 0, 3))
  };

  static constexpr kvloom::KeyRange range{.causal = true};

  static bool keep(const kvloom::Coord& c, const Params& p) {
    if (c.q_pos < 0) return false;  // more new tokens than the cache holds: such a row has no document
    return p.document(c.request, c.q_pos) == p.document(c.request, c.kv_pos);
  }
};
KVLOOM_VARIANT(DocumentMask)
