// A file mapped read-only. Move-only; unmapped by the destructor.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace lapidary {

class MappedFile {
 public:
  static Result<MappedFile> Open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Brings mapped pages in from the disk, in order, without copying them anywhere else. Safe to call
// from several threads on different ranges.
void PrefaultMapped(std::span<const std::byte> bytes);

}  // namespace lapidary
