// Text with provenance: each byte is trusted (the template's own) or not (from the input).
//
// A Text is a window [begin, end) on a shared buffer, so copies and substrings cost nothing.
// Appending to a Text that ends where its buffer ends grows the buffer in place: `ns.s = ns.s +
// part` in a loop is linear, and older windows stay valid since they only see their own range.
// Buffers of template constants are frozen (shared between threads) and are copied instead.
// Otherwise not thread safe. A view() is invalidated by appending to any Text on the same buffer.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_segment.h"

namespace lapidary::jinja {

class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool trusted);

  // An empty text with a buffer of its own: appending to it never touches another text's buffer.
  static Text Builder();
  // A constant: never grown in place, safe to share between threads.
  static Text Frozen(std::string bytes);

  std::string_view view() const {
    return buffer_ ? std::string_view(buffer_->bytes).substr(begin_, end_ - begin_)
                   : std::string_view();
  }
  size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }

  Text Substr(size_t offset, size_t count) const;

  // Bytes that Append(extra) would write, copying this text included.
  size_t AppendCost(size_t extra_bytes) const;
  void Append(const Text& other);
  void Append(std::string_view bytes, bool trusted);

  // Calls visit(std::string_view bytes, bool trusted) for each run, in order. `visit` must not
  // append to this buffer.
  template <typename Visit>
  void ForEachRun(Visit visit) const {
    if (empty()) return;
    for (size_t run_idx = RunAt(begin_), position = begin_; position < end_; ++run_idx) {
      const Run& run = buffer_->runs[run_idx];
      const size_t run_end = run.end < end_ ? run.end : end_;
      visit(std::string_view(buffer_->bytes).substr(position, run_end - position), run.trusted);
      position = run_end;
    }
  }

  std::vector<TextSegment> ToSegments() const;

 private:
  struct Run {
    size_t end;  // One past the last byte; a run starts where the one before it ends.
    bool trusted;
  };
  struct Buffer {
    std::string bytes;
    std::vector<Run> runs;
    bool frozen = false;
  };

  size_t RunAt(size_t position) const;
  void Own();

  std::shared_ptr<Buffer> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace lapidary::jinja
