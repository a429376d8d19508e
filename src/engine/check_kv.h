// --check-kv: every page index and length of a step, verified before the executor sees it.
#pragma once

#include <optional>

#include "base/json_fields.h"
#include "executor/step_batch.h"
#include "kv/kv_layout.h"

namespace lapidary {

// Nothing when the step is sound; otherwise a report of the first violation: what is wrong, the
// sequence (index in the batch and slot), group, a layer of it, its table and lengths.
std::optional<Json> FindKvViolation(const StepBatch& batch, const ModelPlan& plan,
                                    const KvLayout& layout, int num_pages);

}  // namespace lapidary
