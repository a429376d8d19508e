// The narrow waist: the only thing a backend implements.
//
// An executor is built from a plan, its weights and a KV pool. Steps run in the order they were
// submitted; Submit and Collect are separate so that the next step is planned, and may already be
// queued, while one runs.
//
// Within a step, page copies come first, and all reads of a layer's cached entries happen before
// any write to that layer's pages: a page may serve an old block (read) and a new one (written) in
// one step.
#pragma once

#include <cstdint>
#include <limits>
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
  // Drafts that its own drafter proposes for a sequence at most (kTokenFromDrafter); 0: it has
  // none.
  virtual int max_drafts() const { return 0; }
  // Whether it drafts text as well, with an assistant and without (SequenceStep::quota),
  virtual bool drafts_text() const { return false; }
  // and text that repeats; then every binding has its tokens.
  virtual bool drafts_repeated_text() const { return false; }
  // Of a step, all sequences together.
  virtual int max_rows() const { return std::numeric_limits<int>::max(); }
  // Whether bindings may carry pictures and sounds.
  virtual bool takes_media() const { return false; }
  // Whether bindings may carry LoRA adapters.
  virtual bool takes_adapters() const { return false; }

  // Queues a step; the batch is taken over. At most two may be uncollected. std::bad_alloc: there
  // is no host memory to queue it, and it is not there. Other exceptions: as Collect.
  virtual void Submit(StepBatch batch) = 0;
  // Waits for the oldest uncollected step. std::bad_alloc: the step ran out of host memory, and so
  // did those submitted after it; the executor goes on with the next ones. Any other exception: the
  // device has failed for good.
  virtual StepOutput Collect() = 0;

  // Nothing is in flight and no sequence is left: what slots hold of their last ones (grammars,
  // images and audio) may go.
  virtual void ForgetSlots() {}

  StepOutput Run(StepBatch batch) {
    Submit(std::move(batch));
    return Collect();
  }
};

}  // namespace lapidary
