// Feeds arbitrary token sequences to the output parser. Bytes below 16 pick a special token, others
// are text; the result must not depend on how text is cut into pieces.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/output_parser.h"

namespace {

std::vector<lapidary::OutputEvent> Run(const std::vector<std::pair<int, std::string>>& tokens,
                                       const lapidary::OutputParserOptions& options) {
  std::vector<lapidary::OutputEvent> events;
  lapidary::OutputParser parser(options);
  for (const auto& [id, text] : tokens) parser.Push(id, text, &events);
  parser.Finish(&events);
  return events;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static constexpr int kSpecials[] = {100, 101, 48, 49, 50, 52, 106, 1};
  constexpr int kPlain = 9999;
  if (size == 0) return 0;
  lapidary::OutputParserOptions options;
  options.starts_in_thought = data[0] & 1;
  options.accept_bare_thought = data[0] & 2;
  options.stream_arguments = data[0] & 4;
  options.max_call_bytes = 4096;
  std::vector<std::pair<int, std::string>> joined, split;
  for (size_t offset = 1; offset < size; ++offset) {
    const uint8_t byte = data[offset];
    if (byte < 8) {
      joined.emplace_back(kSpecials[byte], "");
      split.emplace_back(kSpecials[byte], "");
      continue;
    }
    split.emplace_back(kPlain, std::string(1, static_cast<char>(byte)));
    if (joined.empty() || joined.back().first != kPlain) joined.emplace_back(kPlain, "");
    joined.back().second.push_back(static_cast<char>(byte));
  }
  CHECK(Run(joined, options) == Run(split, options));
  lapidary::ParseAll(joined, options);
  return 0;
}
