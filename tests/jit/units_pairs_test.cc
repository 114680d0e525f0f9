// tests/jit/units.txt has, of each family, every pair of values of what kernels differ by: types, dims, store, each feature, policy. A pair that is not there
// must be one that no kernel has: whatever unit with one of the values is changed to have the other is refused.
#include "kvloom/api/kernels.h"
#include "kvloom/contract/kernel_key.h"
#include "kvloom/support/error.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

namespace kvloom {
namespace {

struct Unit {
  std::string family;
  AttentionSpec spec;
  bool fixed_split = false;

  std::string key() const { return kernel_key("attend", family.c_str(), spec, fixed_split); }
};

std::vector<Unit> units() {
  std::vector<Unit> list;
  std::ifstream file(KVLOOM_SOURCE_DIR "/tests/jit/units.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const ParsedKey k = parse_kernel_key(line.substr(0, line.find(' ')));
    EXPECT_EQ(k.fault, "") << line;
    list.push_back({k.family, k.spec, k.fixed_split});
  }
  return list;
}

/// One thing that kernels differ by. fp8 and types of output count beside Q's type, which a key leaves them out for.
struct Parameter {
  std::function<std::string(const Unit&)> value;
  std::function<void(const Unit& from, Unit& to)> copy;
};

DType other_16(DType q) { return q == DType::f16 ? DType::bf16 : DType::f16; }

std::string word(const char* name, int64_t value) { return name + std::to_string(value); }

const std::vector<Parameter>& parameters() {
  static const std::vector<Parameter> list = {
      {[](const Unit& u) { return std::string("q ") + name_of(u.spec.q_dtype); },
       [](const Unit& from, Unit& to) {
         AttentionSpec& s = to.spec;
         const bool own_kv = !is_fp8(s.kv_dtype), own_o = s.o_dtype == s.q_dtype, other_o = s.o_dtype == other_16(s.q_dtype);
         s.q_dtype = from.spec.q_dtype;
         if (own_kv) s.kv_dtype = s.q_dtype;
         if (own_o) s.o_dtype = s.q_dtype;
         if (other_o) s.o_dtype = other_16(s.q_dtype);
       }},
      {[](const Unit& u) { return std::string("kv ") + (is_fp8(u.spec.kv_dtype) ? name_of(u.spec.kv_dtype) : "as q"); },
       [](const Unit& from, Unit& to) { to.spec.kv_dtype = is_fp8(from.spec.kv_dtype) ? from.spec.kv_dtype : to.spec.q_dtype; }},
      {[](const Unit& u) { return std::string("o ") + (u.spec.o_dtype == DType::f32 ? "f32" : u.spec.o_dtype == u.spec.q_dtype ? "as q" : "the other"); },
       [](const Unit& from, Unit& to) {
         const DType q = to.spec.q_dtype;
         to.spec.o_dtype = from.spec.o_dtype == DType::f32 ? DType::f32 : from.spec.o_dtype == from.spec.q_dtype ? q : other_16(q);
       }},
      {[](const Unit& u) { return "d" + std::to_string(u.spec.head_dim_qk) + "-" + std::to_string(u.spec.head_dim_vo); },
       [](const Unit& from, Unit& to) { to.spec.head_dim_qk = from.spec.head_dim_qk, to.spec.head_dim_vo = from.spec.head_dim_vo; }},
      {[](const Unit& u) { return word("storage ", int64_t(u.spec.storage)); },
       [](const Unit& from, Unit& to) { to.spec.storage = from.spec.storage, to.spec.page_size = from.spec.page_size; }},
      {[](const Unit& u) { return word("alibi ", u.spec.variant.alibi); }, [](const Unit& from, Unit& to) { to.spec.variant.alibi = from.spec.variant.alibi; }},
      {[](const Unit& u) { return word("soft_cap ", u.spec.variant.soft_cap > 0.0f); },
       [](const Unit& from, Unit& to) { to.spec.variant.soft_cap = from.spec.variant.soft_cap; }},
      {[](const Unit& u) { return word("custom_mask ", u.spec.variant.custom_mask); },
       [](const Unit& from, Unit& to) { to.spec.variant.custom_mask = from.spec.variant.custom_mask; }},
      {[](const Unit& u) { return word("reduction ", int64_t(u.spec.variant.reduction)); },
       [](const Unit& from, Unit& to) { to.spec.variant.reduction = from.spec.variant.reduction; }},
      {[](const Unit& u) { return word("rope ", int64_t(u.spec.variant.rope.mode)); }, [](const Unit& from, Unit& to) { to.spec.variant.rope = from.spec.variant.rope; }},
      {[](const Unit& u) { return word("fixed_split ", u.fixed_split); }, [](const Unit& from, Unit& to) { to.fixed_split = from.fixed_split; }},
  };
  return list;
}

bool has_kernel(const Unit& u) {
  try {
    kernel_source(u.key(), "sm_90a");
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(Units, TheListHasEveryPair) {
  std::map<std::string, std::vector<Unit>> families;
  for (const Unit& u : units()) families[u.family].push_back(u);
  ASSERT_EQ(families.size(), 2u);
  const std::vector<Parameter>& p = parameters();
  for (const auto& [family, list] : families) {
    std::set<std::pair<std::string, std::string>> there;
    std::vector<std::map<std::string, const Unit*>> values(p.size());  // and a unit that has it
    for (const Unit& u : list) {
      for (size_t a = 0; a < p.size(); ++a) {
        values[a].emplace(p[a].value(u), &u);
        for (size_t b = 0; b < a; ++b) there.insert({p[a].value(u), p[b].value(u)});
      }
    }
    for (size_t a = 0; a < p.size(); ++a) {
      EXPECT_GE(values[a].size(), 2u) << family << ": " << values[a].begin()->first << " is all there is";
      for (size_t b = 0; b < a; ++b) {
        for (const auto& [x, has_x] : values[a]) {
          for (const auto& [y, has_y] : values[b]) {
            if (there.count({x, y}) > 0) continue;
            for (Unit u : list) {
              if (p[b].value(u) == y) {
                p[a].copy(*has_x, u);
              } else if (p[a].value(u) == x) {
                p[b].copy(*has_y, u);
              } else {
                continue;
              }
              EXPECT_FALSE(has_kernel(u)) << family << ": no unit has both " << x << " and " << y << "; add " << u.key();
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvloom
