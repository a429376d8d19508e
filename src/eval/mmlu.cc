#include "eval/mmlu.h"

#include <algorithm>
#include <span>

#include "base/read_file.h"
#include "eval/csv.h"

namespace lapidary {
namespace {

// A start that fewer tokens share is not worth keeping.
constexpr size_t kMinSharedTokens = 32;

std::string AnswerText(int letter) { return std::string(" ") + static_cast<char>('A' + letter); }

Result<std::vector<MmluQuestion>> LoadQuestions(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxDataFileBytes));
  ASSIGN_OR_RETURN(const std::vector<CsvRow> rows, ParseCsv(text, path.string()));
  std::vector<MmluQuestion> questions;
  for (const CsvRow& row : rows) {
    constexpr size_t kColumns = kMmluLetters + 2;
    if (row.size() != kColumns) {
      return MakeError("{}: row {} has {} columns instead of question, A, B, C, D, answer",
                       path.string(), questions.size() + 1, row.size());
    }
    const std::string& answer = row.back();
    if (answer.size() != 1 || answer[0] < 'A' || answer[0] > 'D') {
      return MakeError("{}: row {} has the answer '{}' instead of A, B, C or D", path.string(),
                       questions.size() + 1, answer.substr(0, 20));
    }
    MmluQuestion question;
    question.question = row[0];
    std::copy_n(row.begin() + 1, kMmluLetters, question.choices.begin());
    question.answer = answer[0] - 'A';
    questions.push_back(std::move(question));
  }
  if (questions.empty()) return MakeError("{} holds no questions", path.string());
  return questions;
}

std::string QuestionText(const MmluQuestion& question) {
  std::string text = question.question;
  for (int letter = 0; letter < kMmluLetters; ++letter) {
    text += fmt::format("\n{}. {}", static_cast<char>('A' + letter), question.choices[letter]);
  }
  return text + "\nAnswer:";
}

}  // namespace

Result<std::vector<MmluSubject>> LoadMmlu(const std::filesystem::path& directory,
                                          const std::string& split) {
  const std::filesystem::path folder = directory / split;
  const std::string ending = "_" + split + ".csv";
  std::error_code error;
  std::filesystem::directory_iterator files(folder, error);
  if (error) {
    return MakeError("cannot read {}: {}; --data names a folder with dev/ and {}/ in it",
                     folder.string(), error.message(), split);
  }
  std::vector<std::string> names;
  for (const auto& file : files) {
    const std::string name = file.path().filename().string();
    if (name.size() > ending.size() && name.ends_with(ending)) {
      names.push_back(name.substr(0, name.size() - ending.size()));
    }
  }
  if (names.empty()) return MakeError("{} has no file SUBJECT{}", folder.string(), ending);
  std::sort(names.begin(), names.end());
  std::vector<MmluSubject> subjects;
  for (const std::string& name : names) {
    MmluSubject subject;
    subject.name = name;
    const std::filesystem::path dev = directory / "dev" / (name + "_dev.csv");
    ASSIGN_OR_RETURN(subject.shots, LoadQuestions(dev));
    if (subject.shots.size() < kMmluShots) {
      return MakeError("{}: {} questions are too few for {} shots", dev.string(),
                       subject.shots.size(), kMmluShots);
    }
    subject.shots.resize(kMmluShots);
    ASSIGN_OR_RETURN(subject.questions, LoadQuestions(folder / (name + ending)));
    subjects.push_back(std::move(subject));
  }
  return subjects;
}

std::string MmluPrompt(const MmluSubject& subject, const MmluQuestion& question, int num_shots) {
  std::string topic = subject.name;
  std::replace(topic.begin(), topic.end(), '_', ' ');
  std::string text = fmt::format(
      "The following are multiple choice questions (with answers) about {}.\n\n", topic);
  for (int shot_idx = 0; shot_idx < num_shots; ++shot_idx) {
    const MmluQuestion& shot = subject.shots[shot_idx];
    text += QuestionText(shot) + AnswerText(shot.answer) + "\n\n";
  }
  return text + QuestionText(question);
}

Result<MmluEncoder> MmluEncoder::Create(const Tokenizer& tokenizer) {
  MmluEncoder encoder(tokenizer);
  std::vector<int32_t> stem;
  for (int letter = 0; letter < kMmluLetters; ++letter) {
    std::vector<int32_t> ids =
        tokenizer.Encode("Answer:" + AnswerText(letter), SpecialTokens::kPlain);
    if (ids.empty()) return MakeError("the tokenizer has no tokens for the letters A to D");
    encoder.letter_ids_[letter] = ids.back();
    ids.pop_back();
    const auto& seen = encoder.letter_ids_;
    if ((letter > 0 && ids != stem) ||
        std::find(seen.begin(), seen.begin() + letter, seen[letter]) != seen.begin() + letter) {
      return MakeError("the tokenizer does not write the letters A to D as one token each");
    }
    stem = std::move(ids);
  }
  return encoder;
}

Result<std::vector<int32_t>> MmluEncoder::Encode(const std::string& prompt) const {
  // With an answer behind it, for the tokens of a text may change when it goes on.
  std::vector<int32_t> ids = tokenizer_->Encode(prompt + AnswerText(0), SpecialTokens::kPlain);
  if (ids.empty() || ids.back() != letter_ids_[0]) {
    return MakeError("the tokenizer joins an answer to the text before it");
  }
  ids.pop_back();
  if (tokenizer_->bos_id() >= 0) ids.insert(ids.begin(), tokenizer_->bos_id());
  return ids;
}

Status AddMmluRequests(const MmluEncoder& encoder, const MmluSubject& subject,
                       const std::vector<size_t>& questions, int64_t max_context,
                       MmluRequests* asked) {
  auto sampling = std::make_shared<SamplingParams>();
  sampling->temperature = 0.0f;
  sampling->num_logprobs = 0;  // So that a row with a NaN anywhere fails.
  sampling->allowed_tokens.assign(encoder.letter_ids().begin(), encoder.letter_ids().end());
  const size_t first = asked->requests.size();
  for (const size_t question_idx : questions) {
    Request request;
    std::vector<int32_t>& prompt_ids = request.prompt.ids;
    for (int num_shots = kMmluShots; num_shots >= 0; --num_shots) {
      const std::string prompt = MmluPrompt(subject, subject.questions[question_idx], num_shots);
      ASSIGN_OR_RETURN(prompt_ids, encoder.Encode(prompt));
      if (std::ssize(prompt_ids) < max_context) {
        asked->num_shortened += num_shots < kMmluShots;
        break;
      }
      if (num_shots == 0) {
        return MakeError("{}: question {} has {} tokens and the context holds {}", subject.name,
                         question_idx + 1, prompt_ids.size(), max_context);
      }
    }
    request.max_new_tokens = 1;
    request.ignore_eos = true;
    request.sampling = sampling;
    request.goes_on = false;
    asked->requests.push_back(std::move(request));
  }
  // What all prompts begin with, the shots, is computed once and kept.
  const std::span<Request> requests = std::span(asked->requests).subspan(first);
  if (requests.size() < 2) return {};
  std::span<const int32_t> shared = requests[0].prompt.ids;
  for (const Request& request : requests) {
    // The last token of a prompt is always computed.
    const std::vector<int32_t>& ids = request.prompt.ids;
    const auto parting = std::mismatch(shared.begin(), shared.end(), ids.begin(), ids.end() - 1);
    shared = shared.first(parting.first - shared.begin());
  }
  if (shared.size() < kMinSharedTokens) return {};
  for (Request& request : requests) {
    request.prompt.cache_points = {static_cast<int32_t>(shared.size())};
  }
  return {};
}

}  // namespace lapidary
