// The CPU's KV pool: one zeroed mapping of equal pages, touched only as pages are used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "kv/kv_layout.h"
#include "kv/page_pool.h"
#include "kv/sequence_pages.h"
#include "model/kv_format.h"

namespace lapidary::cpu {

// Entries of one KV head that follow each other, in the format of the cache.
struct StoredEntries {
  std::byte* codes = nullptr;  // [count, entry_len] elements
  float* scales = nullptr;     // [count, NumKvScales]

  StoredEntries From(KvFormat format, const KvEntryPlan& entry, int64_t first) const {
    return {codes + first * entry.entry_len * KvElementBytes(format),
            scales + first * NumKvScales(format, entry)};
  }
};

class KvMemory {
 public:
  static Result<KvMemory> Allocate(const KvLayout& layout, int num_pages);
  KvMemory(KvMemory&& other) noexcept;
  KvMemory& operator=(KvMemory&&) = delete;
  ~KvMemory();

  int num_pages() const { return num_pages_; }

  // Entries of (owner layer, KV head) in a page, from that of token `slot` on.
  StoredEntries Entries(const KvLayout& layout, const LayerPlan& owner, PageIndex page, int kv_head,
                        int slot) const {
    std::byte* const at = memory_ + page * layout.page_bytes;
    return StoredEntries{at + layout.HeadOffset(owner, kv_head),
                         reinterpret_cast<float*>(at + layout.ScalesOffset(owner, kv_head))}
        .From(layout.format, owner.kv_entry, slot);
  }

  void Copy(const KvLayout& layout, const PageCopy& copy);

  // For tests: every value of the page becomes NaN.
  void Poison(const KvLayout& layout, PageIndex page);

 private:
  KvMemory(std::byte* memory, size_t bytes, int num_pages)
      : memory_(memory), bytes_(bytes), num_pages_(num_pages) {}

  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
  int num_pages_ = 0;
};

}  // namespace lapidary::cpu
