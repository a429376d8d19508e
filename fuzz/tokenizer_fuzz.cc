// A tokenizer.json, then optionally a NUL byte and a text. Any file must load or be refused, and a
// loaded one must give back every text: joined as in streaming, and with nothing lost.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

// `text` with U+FFFD for each byte that is not part of a character, and spaces as decoding has
// them: U+2581 is a space in the vocabulary's spelling.
std::string Readable(std::string_view text) {
  std::string readable;
  while (!text.empty()) {
    const Utf8Char front = ReadUtf8(text);
    if (front.status != Utf8Status::kComplete) {
      readable += kReplacementCharacter;
    } else if (front.code_point == 0x2581 || front.code_point == ' ') {
      readable += ' ';
    } else {
      readable += text.substr(0, front.num_bytes);
    }
    text.remove_prefix(front.num_bytes);
  }
  return readable;
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Detokenizer detokenizer(tokenizer, /*skip_special=*/false);
  std::string text;
  for (const int32_t id : ids) CHECK(detokenizer.Push(id, &text).ok());
  detokenizer.Finish(&text);
  return text;
}

void CheckText(const Tokenizer& tokenizer, std::string_view text) {
  for (const SpecialTokens mode : {SpecialTokens::kParse, SpecialTokens::kPlain}) {
    const std::vector<int32_t> ids = tokenizer.Encode(text, mode);
    const std::string decoded = tokenizer.Decode(ids, /*skip_special=*/false).value();
    CHECK(Stream(tokenizer, ids) == decoded);
    (void)tokenizer.Decode(ids, /*skip_special=*/true).value();
  }
  const std::vector<TextSegment> segments = {{std::string(text.substr(0, text.size() / 2)), true},
                                             {std::string(text.substr(text.size() / 2)), true}};
  CHECK(tokenizer.Encode(segments) == tokenizer.Encode(text, SpecialTokens::kParse));
}

// The vocabulary in the file may spell pieces like byte tokens or merge those, and then decoding
// reads them differently. With a fixed one, a text must come back whole.
void CheckRoundTrip(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.Encode(text, SpecialTokens::kPlain);
  CHECK(Readable(tokenizer.Decode(ids, /*skip_special=*/false).value()) == Readable(text));
}

std::string FixedVocabulary() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) vocab += fmt::format("\"<0x{:02X}>\":{},", byte, byte);
  return "{\"model\":{\"byte_fallback\":true,\"vocab\":{" + vocab +
         "\"a\":256,\"b\":257,\"\u2581\":258,\"ab\":259,\"\u2581a\":260},"
         "\"merges\":[[\"a\",\"b\"],[\"\u2581\",\"a\"]]},"
         "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
         "\"content\":\"\u2581\"},\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
         "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},\"content\":\" \"},"
         "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}}";
}

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lapidary;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t separator = std::min(input.find('\0'), size);
  const std::string_view text = separator < size ? input.substr(separator + 1) : "";
  static const Tokenizer fixed = Tokenizer::FromJson(FixedVocabulary(), "fixed").value();
  CheckRoundTrip(fixed, text);
  if (const auto tokenizer = Tokenizer::FromJson(input.substr(0, separator), "fuzz");
      tokenizer.ok()) {
    CheckText(*tokenizer, text);
  }
  return 0;
}
