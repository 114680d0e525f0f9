// Which configuration a spec gets: that of either family, as far as the warps of a CTA allow.
#pragma once

#include "kvloom/device/mixed/config.h"
#include "kvloom/device/sm90/choose.h"
#include "kvloom/device/stream/choose.h"

namespace kvloom::mixed {

/// `s`: what family sm90 makes units for.
KVLOOM_HD constexpr AttendConfig config_of(const sm90::UnitSpec& s) {
  AttendConfig c;
  c.few = stream::config_of({s.head_dim_qk, s.head_dim_vo, s.dtype, s.dtype, s.o_dtype, s.paged});
  c.many = sm90::mixed_config(s);
  c.many.own_loops = c.many.gathers;
  // Whichever kind comes last merges: it must not show.
  c.few.merge_partials = c.many.merge_partials = 8;
  c.few.beside = true;
  c.few.two_boxes = true;
  c.few.entries_ahead = 4;  // shared memory has no room for more
  c.few.merge_rows = c.many.merge_rows = 2;
  c.many.merge_together = true;
  return c;
}

}  // namespace kvloom::mixed
