// Streams a tokenizer.json: the two big tables go straight to their compact form, the small rest
// becomes a JSON value. A tree of the whole file would take over a hundred bytes for each of its
// two million strings and most of the loading time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/merge_list.h"
#include "text/vocabulary.h"

namespace lapidary {

class TokenizerSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  TokenizerSax(Vocabulary* vocabulary, MergeList* merges)
      : vocabulary_(*vocabulary), merges_(*merges) {}

  // Everything but model.vocab and model.merges, which are null here when the file has them.
  const nlohmann::json& rest() const { return root_; }
  // Set when parsing stopped, by the parser or by us.
  const std::string& error() const { return error_; }

  bool null() override;
  bool boolean(bool value) override;
  bool number_integer(number_integer_t value) override;
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t value, const string_t& text) override;
  bool string(string_t& value) override;
  bool binary(binary_t& value) override;
  bool start_object(size_t num_elements) override;
  bool end_object() override;
  bool start_array(size_t num_elements) override;
  bool end_array() override;
  bool key(string_t& value) override;
  bool parse_error(size_t position, const std::string& last_token,
                   const nlohmann::json::exception& exception) override;

 private:
  enum class Place { kRest, kVocab, kMerges, kMergePair };

  bool Fail(std::string message);
  // False with an error when the reader is inside one of the big tables.
  bool InRest();
  bool AddValue(nlohmann::json value);
  bool Open(nlohmann::json container);
  bool AddToVocabulary(int64_t id);
  bool AtModelField(const char* name) const;

  Vocabulary& vocabulary_;
  MergeList& merges_;
  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;   // from the root down to the innermost open container
  std::vector<std::string> open_keys_;  // the key each of them was opened under
  std::string key_;                     // the last key read
  std::vector<std::string> pair_;       // the parts of the merge being read
  Place place_ = Place::kRest;
  std::string error_;
};

}  // namespace lapidary
