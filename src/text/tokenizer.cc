#include "text/tokenizer.h"

#include <utility>

#include "base/read_file.h"
#include "text/detokenizer.h"
#include "text/tokenizer_json.h"

namespace lapidary {
namespace {

// Real files have 32 MB.
constexpr size_t kMaxFileBytes = size_t{1} << 30;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The decoder's rule for byte tokens: any piece spelled <0xHH>, in either case.
std::optional<uint8_t> ParseByteToken(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  const int high = HexDigit(piece[3]);
  const int low = HexDigit(piece[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<uint8_t>(high << 4 | low);
}

}  // namespace

Result<Tokenizer> Tokenizer::Load(const std::filesystem::path& tokenizer_json) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(tokenizer_json, kMaxFileBytes));
  return FromJson(text, tokenizer_json.string());
}

Result<Tokenizer> Tokenizer::FromJson(std::string_view text, std::string_view name) {
  auto file = ParseTokenizerJson(text);
  if (!file.ok()) return MakeError("{}: {}", name, file.error().message);
  return FromFile(*std::move(file), name);
}

Result<Tokenizer> Tokenizer::FromFile(TokenizerFile file, std::string_view name) {
  auto bpe = Bpe::Build(file.vocabulary, file.merges);
  if (!bpe.ok()) return MakeError("{}: {}", name, bpe.error().message);
  return Tokenizer(std::move(file), *std::move(bpe));
}

Tokenizer::Tokenizer(TokenizerFile file, Bpe bpe)
    : vocabulary_(std::move(file.vocabulary)),
      bpe_(std::move(bpe)),
      traits_(vocabulary_.size()),
      bos_id_(vocabulary_.Find("<bos>").value_or(-1)) {
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (!vocabulary_.Has(id)) continue;
    if (const auto byte = ParseByteToken(vocabulary_.Piece(id))) traits_[id] = kByte | *byte;
  }
  for (const AddedToken& token : file.added_tokens) {
    (token.normalized ? normalized_tokens_ : raw_tokens_).Add(token.content, token.id);
    has_normalized_tokens_ |= token.normalized;
    if (token.special) traits_[token.id] |= kSpecial;
  }
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, SpecialTokens mode) const {
  const Range whole{0, text.size()};
  return EncodeJoined(text, {&whole, mode == SpecialTokens::kParse ? size_t{1} : size_t{0}});
}

std::vector<int32_t> Tokenizer::Encode(std::span<const TextSegment> segments) const {
  std::string text;
  std::vector<Range> trusted;
  for (const TextSegment& segment : segments) {
    if (segment.text.empty()) continue;
    const size_t begin = text.size();
    text += segment.text;
    if (!segment.trusted) continue;
    if (!trusted.empty() && trusted.back().end == begin) {
      trusted.back().end = text.size();
    } else {
      trusted.push_back({begin, text.size()});
    }
  }
  return EncodeJoined(text, trusted);
}

//  text:     plain <bos> plain | untrusted: plain <bos> | <eos> plain
//  matches:        <bos>                                  <eos>
//  BPE over: plain      plain    plain <bos>                    plain
std::vector<int32_t> Tokenizer::EncodeJoined(std::string_view text,
                                             std::span<const Range> trusted) const {
  std::vector<AddedTokenMatch> matches;
  for (const Range& range : trusted) AppendMatches(text, range, &matches);
  std::vector<int32_t> ids;
  size_t pos = 0;
  for (const AddedTokenMatch& match : matches) {
    bpe_.Encode(text.substr(pos, match.begin - pos), &ids);
    ids.push_back(match.id);
    pos = match.end;
  }
  bpe_.Encode(text.substr(pos), &ids);
  return ids;
}

void Tokenizer::AppendMatches(std::string_view text, Range trusted,
                              std::vector<AddedTokenMatch>* matches) const {
  if (!has_normalized_tokens_) {
    return raw_tokens_.Find(text, trusted.begin, trusted.end, matches);
  }
  std::vector<AddedTokenMatch> raw;
  raw_tokens_.Find(text, trusted.begin, trusted.end, &raw);
  size_t pos = trusted.begin;
  for (const AddedTokenMatch& match : raw) {
    normalized_tokens_.Find(text, pos, match.begin, matches);
    matches->push_back(match);
    pos = match.end;
  }
  normalized_tokens_.Find(text, pos, trusted.end, matches);
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  Detokenizer detokenizer(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) RETURN_IF_ERROR(detokenizer.Push(id, &text));
  detokenizer.Finish(&text);
  return text;
}

std::optional<std::string_view> Tokenizer::IdToPiece(int32_t id) const {
  return vocabulary_.Has(id) ? std::optional(vocabulary_.Piece(id)) : std::nullopt;
}

std::optional<uint8_t> Tokenizer::IdToByte(int32_t id) const {
  if (!Is(id, kByte)) return std::nullopt;
  return static_cast<uint8_t>(traits_[id] & kByteMask);
}

Status Tokenizer::CheckGemma4Specials() const {
  constexpr std::pair<std::string_view, int32_t> kExpected[] = {
      {"<eos>", 1},        {"<bos>", 2},     {"<|tool_response>", 50}, {"<|channel>", 100},
      {"<channel|>", 101}, {"<|turn>", 105}, {"<turn|>", 106},
  };
  for (const auto& [piece, expected] : kExpected) {
    const auto id = TokenToId(piece);
    if (id && *id != expected) {
      return MakeError(
          "the token {} has the id {}, but Gemma 4 has it at {}: not a Gemma 4 "
          "vocabulary",
          piece, *id, expected);
    }
  }
  return {};
}

}  // namespace lapidary
