// The merges of a tokenizer file, in rank order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lapidary {

// Left and right part of each merge lie side by side in one buffer, so their union is a view too.
class MergeList {
 public:
  void Add(std::string_view left, std::string_view right) {
    entries_.push_back({text_.size(), left.size(), right.size()});
    text_ += left;
    text_ += right;
  }

  size_t size() const { return entries_.size(); }
  std::string_view Left(size_t rank) const { return View(rank, 0, entries_[rank].left_bytes); }
  std::string_view Right(size_t rank) const {
    return View(rank, entries_[rank].left_bytes, entries_[rank].right_bytes);
  }
  std::string_view Union(size_t rank) const {
    return View(rank, 0, entries_[rank].left_bytes + entries_[rank].right_bytes);
  }

 private:
  struct Entry {
    size_t begin;
    size_t left_bytes;
    size_t right_bytes;
  };

  std::string_view View(size_t rank, size_t offset, size_t num_bytes) const {
    return std::string_view(text_).substr(entries_[rank].begin + offset, num_bytes);
  }

  std::string text_;
  std::vector<Entry> entries_;
};

}  // namespace lapidary
