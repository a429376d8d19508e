#include "executor/cpu/kv_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lapidary::cpu {

Result<KvMemory> KvMemory::Allocate(const KvLayout& layout, int num_pages) {
  if (num_pages < 2) {
    return MakeError("a KV pool of {} pages holds nothing: page 0 is scratch", num_pages);
  }
  size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(layout.page_bytes), static_cast<size_t>(num_pages),
                             &bytes)) {
    return MakeError("a KV pool of {} pages of {} bytes is beyond any memory", num_pages,
                     layout.page_bytes);
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return MakeError("cannot reserve {:.2f} GB for the KV pool", 1e-9 * static_cast<double>(bytes));
  }
  return KvMemory(static_cast<std::byte*>(memory), bytes, num_pages);
}

KvMemory::KvMemory(KvMemory&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_),
      num_pages_(other.num_pages_) {}

KvMemory::~KvMemory() {
  if (memory_ != nullptr) munmap(memory_, std::max<size_t>(bytes_, 1));
}

void KvMemory::Copy(const KvLayout& layout, const PageCopy& copy) {
  std::memcpy(memory_ + copy.to * layout.page_bytes, memory_ + copy.from * layout.page_bytes,
              static_cast<size_t>(layout.page_bytes));
}

void KvMemory::Poison(const KvLayout& layout, PageIndex page) {
  // All bits set is NaN in f32, which scales are, and in bf16.
  std::memset(memory_ + page * layout.page_bytes, 0xff, static_cast<size_t>(layout.page_bytes));
}

}  // namespace lapidary::cpu
