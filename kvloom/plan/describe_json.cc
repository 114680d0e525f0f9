// A plan as JSON: everything in it, names as in contract/plan_format.h, keys always in this order.
#include "kvloom/plan/describe.h"
#include "kvloom/plan/describe_facts.h"

namespace kvloom::plan {
namespace {

/// Writes `count` elements with commas and line breaks between them.
template <class F>
void write_array(std::string& out, const char* name, int64_t count, F&& element) {
  append(out, ",\n  \"{}\": [", name);
  for (int64_t i = 0; i < count; ++i) {
    append(out, "{}\n    ", i ? "," : "");
    element(i);
  }
  append(out, "{}]", count > 0 ? "\n  " : "");
}

void write_header(const PlanView& plan, const AttentionSpec& spec, const PlanFacts& facts, std::string& out) {
  const PlanHeader& h = *plan.header;
  append(out,
         "{{\n  \"policy\": \"{}\",\n  \"num_ctas\": {},\n  \"num_requests\": {},\n  \"total_tokens\": {},\n  \"num_qo_heads\": {},\n"
         "  \"num_kv_heads\": {},\n  \"num_levels\": {},\n  \"chunk_cap\": {},\n  \"split_tokens\": {},\n  \"scratch_rows\": {},\n"
         "  \"graph_key\": \"{:#018x}\",\n  \"cost_total\": {},\n  \"cost_max\": {},\n  \"balance\": {}",
         name_of(h.policy), h.num_ctas, facts.num_requests, h.total_tokens, spec.num_qo_heads, spec.num_kv_heads, h.num_levels, h.chunk_cap,
         h.split_tokens, h.scratch_rows, h.graph_key, h.cost_total, h.cost_max,
         ratio(facts.largest_load * uint64_t(h.num_ctas), facts.total_load));
  write_array(out, "classes", 2, [&](int64_t c) {
    const KernelClass& k = h.classes[c];
    append(out,
           "{{\"name\": \"{}\", \"tile_rows\": {}, \"tile_kv\": {}, \"heads_per_item\": {}, \"cost_per_token\": {}, "
           "\"cost_per_tile_row\": {}, \"cost_per_item\": {}}}",
           name_of_class(int32_t(c)), k.tile_rows, k.tile_kv, k.heads_per_item, k.cost_per_token, k.cost_per_tile_row, k.cost_per_item);
  });
  append(out, ",\n  \"cta_load\": [");
  for (size_t c = 0; c < facts.ctas.size(); ++c) append(out, "{}{}", c ? ", " : "", facts.ctas[c].load);
  append(out, "]");
}

void write_groups(const PlanView& plan, std::string& out) {
  static constexpr const char* kPositions[] = {"linear", "page_table", "page_id"};
  write_array(out, "groups", plan.groups.size, [&](int64_t i) {
    const RowGroup& g = plan.groups[i];
    append(out,
           "{{\"level\": {}, \"kv_head\": {}, \"list_begin\": {}, \"kv_begin\": {}, \"kv_end\": {}, \"kv_pos0\": {}, \"kv_index0\": {}, "
           "\"kv_position\": \"{}\", \"token_count\": {}, ",
           g.level, g.kv_head, g.list_begin, g.kv_begin, g.kv_end, g.kv_pos0, g.kv_index0, kPositions[int32_t(g.kv_position)],
           g.token_count);
    if (g.row_list < 0) {
      append(out, "\"request\": {}, \"token_begin\": {}, \"q_index0\": {}, \"q_pos0\": {}, \"prefix\": {}}}", g.request, g.token_begin,
             g.q_index0, g.q_pos0, g.prefix);
      return;
    }
    append(out, "\"rows\": [");
    for (int32_t k = 0; k < g.token_count; ++k) {
      const RowEntry e = row_of(plan, g, k);
      append(out, "{}{{\"token\": {}, \"request\": {}, \"q_index\": {}, \"q_pos\": {}, \"prefix\": {}}}", k ? ", " : "", e.token, e.request,
             e.q_index, e.q_pos, e.prefix);
    }
    append(out, "]}}");
  });
}

void write_items(const PlanView& plan, const PlanFacts& facts, std::string& out) {
  int32_t cta = 0;
  write_array(out, "work_items", plan.items.size, [&](int64_t i) {
    const WorkItem& w = plan.items[i];
    while (i >= plan.cta_indptr[cta + 1]) ++cta;
    append(out,
           "{{\"cta\": {}, \"group\": {}, \"request\": {}, \"level\": {}, \"class\": \"{}\", \"row_begin\": {}, \"row_count\": {}, "
           "\"kv_head\": {}, \"kv_head_count\": {}, \"kv_begin\": {}, \"kv_end\": {}, \"cost\": {}, \"partial_row\": {}, "
           "\"partials\": {}, \"units\": [",
           cta, w.group, facts.items[i].request, plan.groups[w.group].level, name_of_class(w.kernel_class), w.row_begin, w.row_count,
           w.kv_head, w.kv_head_count, w.kv_begin, w.kv_end, facts.items[i].cost, w.partial_row,
           w.partial_row < 0 ? 0 : item_partials(*plan.header, w));
    for (int32_t k = 0; k < w.touch_count; ++k) append(out, "{}{}", k ? ", " : "", plan.touches[w.touch_begin + k]);
    append(out, "]}}");
  });
}

void write_units(const PlanView& plan, const PlanFacts& facts, std::string& out) {
  write_array(out, "merge_units", plan.units.size, [&](int64_t i) {
    const MergeUnit& u = plan.units[i];
    append(out, "{{\"row_begin\": {}, \"row_count\": {}, \"kv_head\": {}, \"kv_head_count\": {}, \"arrivals\": {}, \"entries\": [",
           u.row_begin, u.row_count, u.kv_head, u.kv_head_count, u.arrivals);
    for (int32_t k = 0; k < u.entry_count; ++k) {
      const MergeEntry& e = plan.entries[u.entry_begin + k];
      append(out, "{}{{\"item\": {}, \"partial_row\": {}, \"head_stride\": {}}}", k ? ", " : "", facts.entry_item[u.entry_begin + k],
             e.partial_row, e.head_stride);
    }
    append(out, "]}}");
  });
}

}  // namespace

std::string describe_json(const PlanView& plan, const AttentionSpec& spec) {
  std::string out;
  const PlanFacts facts = facts_of(plan, spec);
  write_header(plan, spec, facts, out);
  write_groups(plan, out);
  write_items(plan, facts, out);
  write_units(plan, facts, out);
  out += "\n}\n";
  return out;
}

}  // namespace kvloom::plan
