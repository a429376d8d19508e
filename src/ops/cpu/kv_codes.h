// Entries of the KV cache to their stored format and back (model/kv_format.h).
#pragma once

#include <cstdint>

#include "model/kv_format.h"

namespace lapidary::cpu {

// values [entry_len] -> `stored` [entry_len], elements of the format, and scales [NumKvScales]. The
// scale of a group is its largest magnitude by the largest code; values round to the nearest code.
// A group with a value that is no finite number is decoded as NaN.
void EncodeKvEntry(KvFormat format, const KvEntryPlan& entry, const float* values, void* stored,
                   float* scales);

// The values of an entry [entry_len].
void DecodeKvEntry(KvFormat format, const KvEntryPlan& entry, const void* stored,
                   const float* scales, float* values);

}  // namespace lapidary::cpu
