#include "text/detokenizer.h"

#include <string_view>

#include "text/utf8.h"

namespace lapidary {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";

void AppendWithSpaces(std::string_view piece, std::string* text) {
  for (size_t mark; (mark = piece.find(kSpaceMark)) != piece.npos;) {
    text->append(piece.substr(0, mark));
    text->push_back(' ');
    piece.remove_prefix(mark + kSpaceMark.size());
  }
  text->append(piece);
}

}  // namespace

Status Detokenizer::Push(int32_t id, std::string* text) {
  if (id < 0 || id >= tokenizer_->vocab_size()) {
    return MakeError("token id {} is outside the vocabulary (0..{})", id,
                     tokenizer_->vocab_size() - 1);
  }
  const auto piece = tokenizer_->IdToPiece(id);
  if (!piece || (skip_special_ && tokenizer_->IsSpecial(id))) return {};
  if (const auto byte = tokenizer_->IdToByte(id)) {
    PushByte(*byte, text);
  } else {
    Finish(text);
    AppendWithSpaces(*piece, text);
  }
  return {};
}

void Detokenizer::PushByte(uint8_t byte, std::string* text) {
  pending_.push_back(static_cast<char>(byte));
  while (!pending_.empty()) {
    const Utf8Char front = ReadUtf8(pending_);
    if (front.status == Utf8Status::kTruncated) return;
    if (front.status == Utf8Status::kComplete) {
      text->append(pending_, 0, front.num_bytes);
    } else {
      text->append(kReplacementCharacter);
    }
    pending_.erase(0, front.num_bytes);
  }
}

void Detokenizer::Finish(std::string* text) {
  // Each byte was held back for a successor that never came.
  for (size_t idx = 0; idx < pending_.size(); ++idx) text->append(kReplacementCharacter);
  pending_.clear();
}

}  // namespace lapidary
