// Splits a stream of server-sent events into the data of each event.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lapidary::bench {

// Takes bytes as they come, cut anywhere. Lines end with LF, CR LF or CR; comments and fields
// other than `data` are skipped; several data lines of one event are joined with LF. Some servers
// end the stream without the last empty line: Finish() hands out what is left.
class SseReader {
 public:
  using Sink = std::function<Status(std::string_view data)>;

  // Calls `sink` for each event completed by `bytes`; stops at its first error and returns it.
  Status Feed(std::string_view bytes, const Sink& sink);
  Status Finish(const Sink& sink);

 private:
  Status EndLine(const Sink& sink);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool skips_line_feed_ = false;  // the last byte was CR
};

}  // namespace lapidary::bench
