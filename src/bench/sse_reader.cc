#include "bench/sse_reader.h"

namespace lapidary::bench {
namespace {

constexpr size_t kMaxLineBytes = size_t{64} << 20;  // a server gone wild, not an event

}  // namespace

Status SseReader::EndLine(const Sink& sink) {
  if (line_.empty()) {
    if (!has_data_) return {};
    const std::string data = std::move(data_);
    data_.clear();
    has_data_ = false;
    return sink(data);
  }
  constexpr std::string_view kField = "data";
  std::string_view line = line_;
  if (line.starts_with(kField) && (line.size() == kField.size() || line[kField.size()] == ':')) {
    line.remove_prefix(std::min(kField.size() + 1, line.size()));
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }
  line_.clear();
  return {};
}

Status SseReader::Feed(std::string_view bytes, const Sink& sink) {
  size_t begin = 0;
  while (begin < bytes.size()) {
    if (skips_line_feed_ && bytes[begin] == '\n') {
      skips_line_feed_ = false;
      ++begin;
      continue;
    }
    skips_line_feed_ = false;
    const size_t end = bytes.find_first_of("\r\n", begin);
    line_ += bytes.substr(begin, end == std::string_view::npos ? end : end - begin);
    if (line_.size() + data_.size() > kMaxLineBytes) {
      return MakeError("the server sent an event of over {} bytes", kMaxLineBytes);
    }
    if (end == std::string_view::npos) return {};
    skips_line_feed_ = bytes[end] == '\r';
    begin = end + 1;
    RETURN_IF_ERROR(EndLine(sink));
  }
  return {};
}

Status SseReader::Finish(const Sink& sink) {
  if (!line_.empty()) RETURN_IF_ERROR(EndLine(sink));
  return EndLine(sink);
}

}  // namespace lapidary::bench
