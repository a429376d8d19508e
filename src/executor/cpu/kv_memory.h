// The CPU's KV pool: one zeroed mapping of equal pages of floats, touched only as pages are used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "kv/kv_layout.h"
#include "kv/page_pool.h"
#include "kv/sequence_pages.h"

namespace lapidary::cpu {

class KvMemory {
 public:
  static Result<KvMemory> Allocate(const KvLayout& layout, int num_pages);
  KvMemory(KvMemory&& other) noexcept;
  KvMemory& operator=(KvMemory&&) = delete;
  ~KvMemory();

  int num_pages() const { return num_pages_; }

  // Entry of token `slot` of (owner layer, KV head) in a page.
  float* Entry(const KvLayout& layout, const LayerPlan& owner, PageIndex page, int kv_head,
               int slot) const {
    return reinterpret_cast<float*>(memory_ + page * layout.page_bytes +
                                    layout.HeadOffset(owner, kv_head)) +
           int64_t{slot} * owner.kv_entry.entry_len;
  }

  void Copy(const KvLayout& layout, const PageCopy& copy);

  // For tests: every float of the page becomes NaN.
  void Poison(const KvLayout& layout, PageIndex page);

 private:
  KvMemory(std::byte* memory, size_t bytes, int num_pages)
      : memory_(memory), bytes_(bytes), num_pages_(num_pages) {}

  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
  int num_pages_ = 0;
};

}  // namespace lapidary::cpu
