// What the opaque handles of kvloom.h are.
#pragma once

#include "kvloom/api/c_convert.h"

struct kvloom_engine {
  kvloom::Engine engine;
  kvloom::api::BatchCopy batch;   // memory of the last batch's levels, kept between steps
  kvloom::api::RunCopy run = {};  // ... of the last run's parameters
};

struct kvloom_plan {
  kvloom::Plan plan;
};

struct kvloom_bsr {
  kvloom::BsrBatch bsr;
};
