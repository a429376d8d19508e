// MMLU in its public layout: DIR/dev/SUBJECT_dev.csv and DIR/test/SUBJECT_test.csv (or val), rows
// of question, A, B, C, D, answer.
//
// A prompt is what the benchmark's authors publish: a sentence that names the subject, five solved
// questions from dev, and the question up to "Answer:". The answer is the letter with the largest
// logit of the four.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "session/request.h"
#include "text/tokenizer.h"

namespace lapidary {

inline constexpr int kMmluLetters = 4;
inline constexpr int kMmluShots = 5;

struct MmluQuestion {
  std::string question;
  std::array<std::string, kMmluLetters> choices;
  int answer = 0;  // 0 .. 3
};

struct MmluSubject {
  std::string name;  // "abstract_algebra"
  std::vector<MmluQuestion> shots;
  std::vector<MmluQuestion> questions;
};

// Every subject that has a file in DIR/`split`, by name; `split` is test or val.
Result<std::vector<MmluSubject>> LoadMmlu(const std::filesystem::path& directory,
                                          const std::string& split);

// The text of a prompt, up to "Answer:", with the first `num_shots` of the subject's shots.
std::string MmluPrompt(const MmluSubject& subject, const MmluQuestion& question, int num_shots);

// How a tokenizer writes the four answers after "Answer:".
class MmluEncoder {
 public:
  // `tokenizer` must outlive this. An error when the letters are not one token each.
  static Result<MmluEncoder> Create(const Tokenizer& tokenizer);

  const std::array<int32_t, kMmluLetters>& letter_ids() const { return letter_ids_; }

  // The prompt's ids, <bos> first, after which a letter is the next token. With a space that is a
  // token of its own it is the last of them.
  Result<std::vector<int32_t>> Encode(const std::string& prompt) const;

 private:
  explicit MmluEncoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  const Tokenizer* tokenizer_;
  std::array<int32_t, kMmluLetters> letter_ids_{};
};

struct MmluRequests {
  std::vector<Request> requests;  // of the chosen questions, subject after subject
  int64_t num_shortened = 0;      // prompts with fewer shots, for the context's sake
};

// One request of one token for each of `questions` of the subject. Prompts that exceed the context
// lose shots, from the last on.
Status AddMmluRequests(const MmluEncoder& encoder, const MmluSubject& subject,
                       const std::vector<size_t>& questions, int64_t max_context,
                       MmluRequests* asked);

}  // namespace lapidary
