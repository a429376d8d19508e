#include "text/tokenizer_sax.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace lapidary {
namespace {

using nlohmann::json;

// A real file nests 5 deep. The limit keeps a hostile one from deep recursion later on.
constexpr size_t kMaxDepth = 64;

}  // namespace

bool TokenizerSax::Fail(std::string message) {
  if (error_.empty()) error_ = std::move(message);
  return false;
}

bool TokenizerSax::InRest() {
  switch (place_) {
    case Place::kRest:
      return true;
    case Place::kVocab:
      return Fail(fmt::format("model.vocab['{}'] is not an integer", key_));
    default:
      return Fail(fmt::format(
          "model.merges[{}] is neither a string \"left right\" nor a pair [\"left\", \"right\"]",
          merges_.size()));
  }
}

bool TokenizerSax::AddValue(json value) {
  if (!InRest()) return false;
  if (open_.empty()) {
    root_ = std::move(value);
  } else if (open_.back()->is_array()) {
    open_.back()->push_back(std::move(value));
  } else {
    (*open_.back())[key_] = std::move(value);
  }
  return true;
}

bool TokenizerSax::Open(json container) {
  if (open_.size() >= kMaxDepth) {
    return Fail(fmt::format("the JSON is nested more than {} deep", kMaxDepth));
  }
  const std::string opened_under = open_.empty() || open_.back()->is_array() ? "" : key_;
  if (!AddValue(std::move(container))) return false;
  json* parent = open_.empty() ? nullptr : open_.back();
  json* added = parent == nullptr    ? &root_
                : parent->is_array() ? &parent->back()
                                     : &(*parent)[key_];
  open_.push_back(added);
  open_keys_.push_back(opened_under);
  return true;
}

bool TokenizerSax::AtModelField(const char* name) const {
  return place_ == Place::kRest && open_.size() == 2 && open_keys_[1] == "model" &&
         open_[1]->is_object() && key_ == name;
}

bool TokenizerSax::AddToVocabulary(int64_t id) {
  if (Status status = vocabulary_.Add(key_, id); !status.ok()) {
    return Fail("model.vocab: " + status.error().message);
  }
  return true;
}

bool TokenizerSax::null() { return AddValue(nullptr); }
bool TokenizerSax::boolean(bool value) { return AddValue(value); }

bool TokenizerSax::number_integer(number_integer_t value) {
  return place_ == Place::kVocab ? AddToVocabulary(value) : AddValue(value);
}

bool TokenizerSax::number_unsigned(number_unsigned_t value) {
  constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();
  return place_ == Place::kVocab ? AddToVocabulary(static_cast<int64_t>(std::min(value, kLargest)))
                                 : AddValue(value);
}

bool TokenizerSax::number_float(number_float_t value, const string_t&) { return AddValue(value); }

bool TokenizerSax::string(string_t& value) {
  if (place_ == Place::kMergePair && pair_.size() < 2) {
    pair_.push_back(std::move(value));
    return true;
  }
  if (place_ == Place::kMerges) {
    // The older form. Exactly one space, and no header line: what the `tokenizers` package asks.
    const size_t space = value.find(' ');
    if (space == value.npos || value.find(' ', space + 1) != value.npos ||
        value.starts_with("#version")) {
      return Fail(fmt::format("model.merges[{}] is '{}', not two pieces with one space between",
                              merges_.size(), value));
    }
    const std::string_view text = value;
    merges_.Add(text.substr(0, space), text.substr(space + 1));
    return true;
  }
  return AddValue(std::move(value));
}

bool TokenizerSax::binary(binary_t&) { return Fail("binary values are not JSON"); }

bool TokenizerSax::start_object(size_t) {
  if (AtModelField("vocab")) {
    if (vocabulary_.size() > 0) return Fail("model.vocab is given twice");
    place_ = Place::kVocab;
    return true;
  }
  return Open(json::object());
}

bool TokenizerSax::end_object() {
  if (place_ == Place::kVocab) {
    place_ = Place::kRest;
    key_ = "vocab";
    return AddValue(nullptr);
  }
  open_.pop_back();
  open_keys_.pop_back();
  return true;
}

bool TokenizerSax::start_array(size_t) {
  if (place_ == Place::kMerges) {
    place_ = Place::kMergePair;
    pair_.clear();
    return true;
  }
  if (AtModelField("merges")) {
    if (merges_.size() > 0) return Fail("model.merges is given twice");
    place_ = Place::kMerges;
    return true;
  }
  return Open(json::array());
}

bool TokenizerSax::end_array() {
  if (place_ == Place::kMergePair) {
    if (pair_.size() != 2) return InRest();
    merges_.Add(pair_[0], pair_[1]);
    place_ = Place::kMerges;
    return true;
  }
  if (place_ == Place::kMerges) {
    place_ = Place::kRest;
    return AddValue(nullptr);
  }
  open_.pop_back();
  open_keys_.pop_back();
  return true;
}

bool TokenizerSax::key(string_t& value) {
  key_.swap(value);
  return true;
}

bool TokenizerSax::parse_error(size_t position, const std::string&, const json::exception&) {
  return Fail(fmt::format("invalid JSON near byte {}", position));
}

}  // namespace lapidary
