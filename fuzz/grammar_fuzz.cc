// Compiles arbitrary constraints and walks them. The first byte picks the kind of constraint and
// whether forced text is spelled, the text up to the first zero byte is the constraint,
// the rest is fed to the matcher as tokens: what the mask says must be what accepting says, guessed
// tokens must be allowed, and going back must lead where we came from.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "grammar/constraint.h"

namespace {

using lapidary::grammar::CompileContext;
using lapidary::grammar::Constraint;
using lapidary::grammar::Matcher;
using lapidary::grammar::TokenVocabulary;

constexpr int32_t kNumTokens = 264;  // every byte, then special tokens

std::vector<int32_t> Spell(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char byte : text) ids.push_back(static_cast<uint8_t>(byte));
  return ids;
}

CompileContext Context(bool spells) {
  static const CompileContext context = [] {
    std::vector<std::string> bytes(kNumTokens);
    for (int byte = 0; byte < 256; ++byte) bytes[byte] = std::string(1, static_cast<char>(byte));
    return CompileContext{.vocabulary = std::make_shared<TokenVocabulary>(bytes),
                          .control = {256, 257, 258, 259, 260},
                          .stop_tokens = {261}};
  }();
  CompileContext made = context;
  if (spells) made.spell = Spell;
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 4096) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t end = std::min(input.find('\0'), input.size());
  Constraint constraint;
  constraint.kind = static_cast<Constraint::Kind>(data[0] % 7);
  constraint.text = input.substr(0, end);
  constraint.choices = {constraint.text, "other"};
  constraint.tools = {{.name = "f", .parameters = constraint.text}};
  constraint.must_call = (data[0] & 64) != 0;
  constraint.thought =
      (data[0] & 128) != 0 ? Constraint::Thought::kMayOpen : Constraint::Thought::kNone;
  const CompileContext context = Context((data[0] & 32) != 0);
  const auto grammar = lapidary::grammar::Compile(constraint, context);
  if (!grammar.ok()) {
    CHECK(!grammar.error().message.empty());
    return 0;
  }
  Matcher matcher(*grammar);
  std::vector<uint32_t> words(context.vocabulary->num_words());
  std::vector<uint32_t> again(words.size());
  for (size_t at = end; at < input.size() && at < end + 64; ++at) {
    if (!matcher.FillMask(words).ok()) return 0;
    const std::vector<int32_t> likely = matcher.LikelyTokens(8);
    for (const int32_t guessed : likely) CHECK(*matcher.Accept(guessed));
    matcher.Rollback(static_cast<int>(likely.size()));
    // Where the byte is not allowed, the first token that is.
    int32_t token = static_cast<uint8_t>(input[at]);
    for (int32_t i = 0; i < kNumTokens && (words[token / 32] >> (token % 32) & 1) == 0; ++i) {
      token = (token + 1) % kNumTokens;
    }
    const bool is_allowed = (words[token / 32] >> (token % 32) & 1) != 0;
    const auto accepted = matcher.Accept(token);
    if (!accepted.ok()) return 0;
    CHECK_EQ(*accepted, is_allowed);
    if (!is_allowed) {
      CHECK(matcher.IsTerminated());  // a live state always has a way on
      return 0;
    }
    matcher.Rollback(1);
    CHECK(matcher.FillMask(again).ok() && again == words);
    matcher.Learn(token);
    CHECK(*matcher.Accept(token));
  }
  return 0;
}
