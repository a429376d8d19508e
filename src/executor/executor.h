// The narrow waist: the only thing a backend implements.
//
// An executor is built from a plan, its weights and a KV pool. It takes steps in order; Submit and
// Collect are separate so that the next step can be planned while one runs.
//
// Within a step, all reads of a layer's cached entries happen before any write to that layer's
// pages: a page may serve an old block (read) and a new one (written) in the same step.
#pragma once

#include <cstdint>
#include <memory>

#include "executor/step_batch.h"
#include "kv/kv_layout.h"

namespace lapidary {

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ModelPlan& plan() const = 0;
  virtual const KvLayout& kv_layout() const = 0;
  virtual int num_pages() const = 0;

  // Starts a step; the batch is taken over. At most one step may be outstanding.
  virtual void Submit(StepBatch batch) = 0;
  // Waits for the outstanding step.
  virtual StepOutput Collect() = 0;

  StepOutput Run(StepBatch batch) {
    Submit(std::move(batch));
    return Collect();
  }
};

}  // namespace lapidary
