// Gemma 4's tokenizer: text to token ids and back, from a checkpoint's tokenizer.json.
//
//   ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(dir / "tokenizer.json"));
//   std::vector<int32_t> ids = tokenizer.Encode("Hello", SpecialTokens::kPlain);
//
// Ids equal those of the `tokenizers` package for every text it can take. Nothing is added: a
// caller that wants <bos> puts bos_id() in front.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/text_segment.h"
#include "text/vocabulary.h"

namespace lapidary {

struct TokenizerFile;  // tokenizer_json.h

// What the string "<|turn>" inside a text means.
enum class SpecialTokens {
  kParse,  // the token, as in the `tokenizers` package: for trusted text
  kPlain,  // seven characters: untrusted text cannot forge a turn
};

// Immutable; every method may be called from many threads at once.
class Tokenizer {
 public:
  static Result<Tokenizer> Load(const std::filesystem::path& tokenizer_json);
  // `name` stands for the file in error messages.
  static Result<Tokenizer> FromJson(std::string_view text, std::string_view name);
  static Result<Tokenizer> FromFile(TokenizerFile file, std::string_view name);

  // O(n log n). Any bytes are fine: those that are not well-formed UTF-8 become byte tokens.
  std::vector<int32_t> Encode(std::string_view text, SpecialTokens mode) const;

  // The segments as one text, in which added tokens are matched only within unbroken trusted
  // stretches: not in untrusted text, and not across its border. Plain text on both sides of a
  // border is encoded as one, so the ids are those of the joined text whenever untrusted text plays
  // no part in the spelling of an added token.
  std::vector<int32_t> Encode(std::span<const TextSegment> segments) const;

  // The text of `ids`. Byte tokens are joined to characters; a byte that is part of none becomes
  // U+FFFD (see Detokenizer). Holes of the vocabulary have no text. Fails for an id outside
  // [0, vocab_size()).
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_special) const;

  std::optional<int32_t> TokenToId(std::string_view piece) const { return vocabulary_.Find(piece); }

  // The piece as the vocabulary spells it, with U+2581 for spaces; none for an id that has none.
  std::optional<std::string_view> IdToPiece(int32_t id) const;
  // The byte that a token <0xHH> stands for; none for other tokens.
  std::optional<uint8_t> IdToByte(int32_t id) const;

  // Added tokens marked special: control tokens, which Decode can leave out.
  bool IsSpecial(int32_t id) const { return Is(id, kSpecial); }

  // -1 when the vocabulary has no <bos>.
  int32_t bos_id() const { return bos_id_; }
  // <|video|> is missing in some files of the same vocabulary, where its id is reserved.
  int32_t video_id() const { return TokenToId("<|video|>").value_or(258884); }
  // The largest id plus one.
  int32_t vocab_size() const { return vocabulary_.size(); }

  // Fails when a control token the engine acts on (end of turn, channels, ...) is in the vocabulary
  // under another id than in Gemma 4.
  Status CheckGemma4Specials() const;

 private:
  enum : uint16_t { kByteMask = 0xFF, kByte = 0x100, kSpecial = 0x200 };

  Tokenizer(TokenizerFile file, Bpe bpe);
  bool Is(int32_t id, uint16_t flag) const {
    return id >= 0 && id < vocab_size() && (traits_[id] & flag) != 0;
  }

  struct Range {
    size_t begin;
    size_t end;
  };
  std::vector<int32_t> EncodeJoined(std::string_view text, std::span<const Range> trusted) const;
  void AppendMatches(std::string_view text, Range trusted,
                     std::vector<AddedTokenMatch>* matches) const;

  Vocabulary vocabulary_;
  Bpe bpe_;
  AddedTokenMatcher raw_tokens_;         // matched first,
  AddedTokenMatcher normalized_tokens_;  // then these, in the text between
  bool has_normalized_tokens_ = false;
  std::vector<uint16_t> traits_;  // [vocab_size()]
  int32_t bos_id_ = -1;
};

}  // namespace lapidary
