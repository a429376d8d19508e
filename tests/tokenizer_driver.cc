// Answers tokenizer questions line by line: the C++ side of tools/tokenizer_fuzz.py.
//
//   tokenizer_driver TOKENIZER_JSON
//   {"text": "...", "plain": false}            -> {"ids": [...]}
//   {"segments": [["...", true], ...]}         -> {"ids": [...]}
//   {"ids": [...], "skip_special": true}       -> {"text": "...", "streamed": "..."}
#include <iostream>
#include <string>

#include "base/json.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace lapidary {
namespace {

using nlohmann::json;

json Answer(const Tokenizer& tokenizer, const json& question) {
  if (question.contains("segments")) {
    std::vector<TextSegment> segments;
    for (const json& segment : question["segments"]) {
      segments.push_back({segment[0].get<std::string>(), segment[1].get<bool>()});
    }
    return {{"ids", tokenizer.Encode(segments)}};
  }
  if (question.contains("text")) {
    const bool plain = question.value("plain", false);
    return {{"ids", tokenizer.Encode(question["text"].get<std::string>(),
                                     plain ? SpecialTokens::kPlain : SpecialTokens::kParse)}};
  }
  const auto ids = question["ids"].get<std::vector<int32_t>>();
  const bool skip_special = question.value("skip_special", false);
  const auto text = tokenizer.Decode(ids, skip_special);
  if (!text.ok()) return {{"error", text.error().message}};
  Detokenizer detokenizer(tokenizer, skip_special);
  std::string streamed;
  for (const int32_t id : ids) {
    std::string piece;
    if (!detokenizer.Push(id, &piece).ok()) return {{"error", "Push failed where Decode did not"}};
    streamed += piece;
  }
  detokenizer.Finish(&streamed);
  return {{"text", *text}, {"streamed", streamed}};
}

int Run(const char* path) {
  const auto tokenizer = Tokenizer::Load(path);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.error().message << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Answer(*tokenizer, json::parse(line)).dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace lapidary

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenizer_driver TOKENIZER_JSON\n";
    return 2;
  }
  return lapidary::Run(argv[1]);
}
