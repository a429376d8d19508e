#include "text/jinja/text.h"

#include <algorithm>
#include <utility>

namespace lapidary::jinja {

Text::Text(std::string bytes, bool trusted) : end_(bytes.size()) {
  if (bytes.empty()) return;
  buffer_ = std::make_shared<Buffer>();
  buffer_->runs.push_back({bytes.size(), trusted});
  buffer_->bytes = std::move(bytes);
}

Text Text::Builder() {
  Text text;
  text.buffer_ = std::make_shared<Buffer>();
  return text;
}

Text Text::Frozen(std::string bytes) {
  Text text(std::move(bytes), /*trusted=*/true);
  if (text.buffer_) text.buffer_->frozen = true;
  return text;
}

Text Text::Substr(size_t offset, size_t count) const {
  Text result = *this;
  result.begin_ = std::min(begin_ + offset, end_);
  result.end_ = result.begin_ + std::min(count, end_ - result.begin_);
  return result;
}

size_t Text::RunAt(size_t position) const {
  const auto run =
      std::upper_bound(buffer_->runs.begin(), buffer_->runs.end(), position,
                       [](size_t value, const Run& candidate) { return value < candidate.end; });
  return run - buffer_->runs.begin();
}

size_t Text::AppendCost(size_t extra_bytes) const {
  const bool in_place = buffer_ && !buffer_->frozen && end_ == buffer_->bytes.size();
  return in_place ? extra_bytes : size() + extra_bytes;
}

// Makes this text the tail of a buffer it may grow.
void Text::Own() {
  if (buffer_ && !buffer_->frozen && end_ == buffer_->bytes.size()) return;
  auto buffer = std::make_shared<Buffer>();
  ForEachRun([&](std::string_view bytes, bool trusted) {
    buffer->bytes += bytes;
    buffer->runs.push_back({buffer->bytes.size(), trusted});
  });
  end_ = buffer->bytes.size();
  begin_ = 0;
  buffer_ = std::move(buffer);
}

void Text::Append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  Own();
  buffer_->bytes += bytes;
  end_ = buffer_->bytes.size();
  if (!buffer_->runs.empty() && buffer_->runs.back().trusted == trusted) {
    buffer_->runs.back().end = end_;
  } else {
    buffer_->runs.push_back({end_, trusted});
  }
}

void Text::Append(const Text& other) {
  if (other.empty()) return;
  if (buffer_ == nullptr) {
    *this = other;
    return;
  }
  Text source = other;
  Own();
  if (source.buffer_ == buffer_) {  // x + x: the buffer must not grow under its reader.
    source.buffer_ = std::make_shared<Buffer>(*buffer_);
  }
  source.ForEachRun([this](std::string_view bytes, bool trusted) { Append(bytes, trusted); });
}

std::vector<TextSegment> Text::ToSegments() const {
  std::vector<TextSegment> segments;
  ForEachRun([&](std::string_view bytes, bool trusted) {
    segments.push_back({std::string(bytes), trusted});
  });
  return segments;
}

}  // namespace lapidary::jinja
