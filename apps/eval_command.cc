// `lapidary eval`: questions with known answers, and how many a model gets right.
#include <cstdio>

#include "apps/bundled_models.h"
#include "apps/commands.h"
#include "apps/draft_report.h"
#include "apps/model_flags.h"
#include "base/progress.h"
#include "eval/agreement.h"
#include "eval/mmlu.h"
#include "eval/pebble_suite.h"
#include "eval/subset.h"

namespace lapidary {
namespace {

constexpr const char* kPebbleItems = "pebble-eval.jsonl";

struct EvalFlags {
  ModelFlags model;
  std::string suite = "pebble";
  int64_t num_items = 0;  // 0: all
  uint64_t seed = 0;
  int concurrency = 64;
  std::string items;         // of the pebble suite; empty: the bundled ones
  std::string answers;       // empty: those beside the model, if any
  std::string save_answers;  // empty: nowhere
  std::string data;          // of the mmlu suite
  std::string split = "test";
  bool verbose = false;
  bool json = false;
};

// What can be refused before the weights are read.
Result<ModelFiles> OpenModel(const EvalFlags& flags) {
  ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::Open(flags.model.model));
  if (!files.text->tokenizer.ok()) return files.text->tokenizer.error();
  return files;
}

// The outputs of all requests, with a progress line. `drafts`: what drafting came to.
Result<std::vector<std::vector<int32_t>>> RunAll(const EvalFlags& flags, const ModelFiles& files,
                                                 std::vector<Request> requests,
                                                 DraftStats& drafts) {
  int64_t max_tokens = 0;
  for (const Request& request : requests) {
    const std::vector<int32_t>& ids = request.prompt.ids;
    RETURN_IF_ERROR(CheckPrompt(files.description.plan, ids, *request.max_new_tokens));
    max_tokens = std::max(max_tokens, std::ssize(ids) + *request.max_new_tokens);
  }
  const auto num_requests = static_cast<int64_t>(requests.size());
  const auto in_flight = static_cast<int>(std::min<int64_t>(flags.concurrency, num_requests));
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                   flags.model.LoadSession(files, max_tokens, in_flight));
  Progress progress(flags.suite, num_requests, Progress::Unit::kItems);
  auto outputs = session->RunAll(std::move(requests), in_flight, [&] { progress.Advance(1); });
  drafts = session->engine().stats().drafts;
  return outputs;
}

std::vector<size_t> Choose(const EvalFlags& flags, const std::vector<std::string>& task_of) {
  const size_t count = flags.num_items > 0 ? static_cast<size_t>(flags.num_items) : task_of.size();
  return StratifiedSubset(task_of, count, flags.seed);
}

void Print(const EvalFlags& flags, const Scores& scores, Json json, const std::string& remarks) {
  if (!flags.json) {
    fmt::print("{}{}", scores.ToText(), remarks);
    return;
  }
  json.update(scores.ToJson());
  json["suite"] = flags.suite;
  json["model"] = flags.model.model;
  // A path may be any bytes.
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// The answers to compare with: those named, or those found beside the model.
std::optional<std::filesystem::path> AnswersPath(const EvalFlags& flags,
                                                 const ModelDescription& description) {
  if (!flags.answers.empty()) return flags.answers;
  return description.directory ? FindPebbleAnswers(*description.directory) : std::nullopt;
}

Status EvalPebble(const EvalFlags& flags) {
  ASSIGN_OR_RETURN(const ModelFiles model, OpenModel(flags));
  std::string items_path = flags.items;
  if (items_path.empty()) {
    ASSIGN_OR_RETURN(items_path, FindBundled(kPebbleItems));
  }
  ASSIGN_OR_RETURN(const std::vector<PebbleItem> items, LoadPebbleItems(items_path));
  const auto answers_path = AnswersPath(flags, model.description);
  PebbleAnswers recorded;
  if (answers_path) {
    ASSIGN_OR_RETURN(recorded, LoadPebbleAnswers(*answers_path));
  }
  std::vector<std::string> task_of;
  for (const PebbleItem& item : items) task_of.push_back(item.task);
  const std::vector<size_t> chosen = Choose(flags, task_of);

  // What would be refused after the run is refused before it.
  if (!flags.save_answers.empty()) {
    RETURN_IF_ERROR(SavePebbleAnswers({}, flags.save_answers));
  }
  std::vector<Request> requests;
  std::vector<bool> starts_in_thought;
  for (const size_t idx : chosen) {
    if (answers_path && !recorded.contains(items[idx].id)) {
      return MakeError("{}: there is no recorded answer to item {}: it belongs to another set",
                       answers_path->string(), items[idx].id);
    }
    ASSIGN_OR_RETURN(Request request, MakePebbleRequest(*model.text, items[idx]));
    starts_in_thought.push_back(request.prompt.starts_in_thought);
    requests.push_back(std::move(request));
  }
  DraftStats drafts;
  ASSIGN_OR_RETURN(auto outputs, RunAll(flags, model, std::move(requests), drafts));

  Scores scores;
  std::vector<PebbleAnswer> answers;
  for (size_t place = 0; place < chosen.size(); ++place) {
    const PebbleItem& item = items[chosen[place]];
    answers.push_back(JudgePebbleAnswer(*model.text->tokenizer, item, starts_in_thought[place],
                                        std::move(outputs[place])));
    scores.Add(item.task, item.bin, answers.back().is_right);
  }
  if (!flags.save_answers.empty()) {
    RETURN_IF_ERROR(SavePebbleAnswers(answers, flags.save_answers));
  }
  Json json = Json::object();
  std::string remarks;
  if (answers_path) {
    // Judged again: the verdict on both is one judge's.
    std::vector<PebbleAnswer> references;
    for (size_t place = 0; place < chosen.size(); ++place) {
      const PebbleItem& item = items[chosen[place]];
      references.push_back(JudgePebbleAnswer(*model.text->tokenizer, item, starts_in_thought[place],
                                             recorded.at(item.id).ids));
    }
    const Agreement agreement = CompareAnswers(*model.text->tokenizer, answers, references);
    json["agreement"] = agreement.ToJson();
    json["agreement"]["answers"] = answers_path->string();
    remarks = "\n" + agreement.ToText(answers_path->string(), flags.verbose);
  }
  json["drafting"] = DraftReport(drafts);
  remarks += DraftReportText(drafts);
  Print(flags, scores, std::move(json), remarks);
  return {};
}

Status EvalMmlu(const EvalFlags& flags) {
  if (flags.data.empty()) {
    return MakeError(
        "--suite mmlu needs --data DIR, the folder with dev/ and test/ of the public archive");
  }
  ASSIGN_OR_RETURN(const ModelFiles model, OpenModel(flags));
  ASSIGN_OR_RETURN(const std::vector<MmluSubject> subjects, LoadMmlu(flags.data, flags.split));
  ASSIGN_OR_RETURN(const MmluEncoder encoder, MmluEncoder::Create(*model.text->tokenizer));

  struct Asked {
    const MmluSubject* subject;
    size_t question;
  };
  std::vector<Asked> all;
  std::vector<std::string> task_of;
  for (const MmluSubject& subject : subjects) {
    for (size_t idx = 0; idx < subject.questions.size(); ++idx) {
      all.push_back({&subject, idx});
      task_of.push_back(subject.name);
    }
  }
  std::vector<Asked> asked;
  for (const size_t idx : Choose(flags, task_of)) asked.push_back(all[idx]);

  MmluRequests requests;
  for (auto begin = asked.begin(); begin != asked.end();) {
    const MmluSubject* subject = begin->subject;
    std::vector<size_t> questions;
    for (; begin != asked.end() && begin->subject == subject; ++begin) {
      questions.push_back(begin->question);
    }
    RETURN_IF_ERROR(AddMmluRequests(encoder, *subject, questions,
                                    model.description.plan.max_context, &requests));
  }
  DraftStats drafts;
  ASSIGN_OR_RETURN(const auto outputs, RunAll(flags, model, std::move(requests.requests), drafts));

  Scores scores;
  for (size_t place = 0; place < asked.size(); ++place) {
    const int answer = asked[place].subject->questions[asked[place].question].answer;
    const bool is_right = outputs[place].at(0) == encoder.letter_ids()[answer];
    scores.Add(asked[place].subject->name, "", is_right);
  }
  std::string remarks;
  if (requests.num_shortened > 0) {
    remarks = fmt::format("\n{} prompts have fewer than {} shots, to fit the context\n",
                          requests.num_shortened, kMmluShots);
  }
  Print(flags, scores, {{"shortened_prompts", requests.num_shortened}}, remarks);
  return {};
}

}  // namespace

void AddEvalCommand(CommandLine& command_line) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = command_line.Add(
      "eval", "Score a model on questions with known answers", [flags]() -> Status {
        RETURN_IF_ERROR(ResolveModel(&flags->model.model));
        return flags->suite == "mmlu" ? EvalMmlu(*flags) : EvalPebble(*flags);
      });
  constexpr const char* kGroup = "Questions";
  command
      ->add_option("--suite", flags->suite,
                   "pebble: the bundled 500 tasks of a small made-up world; mmlu: 5-shot, from "
                   "--data")
      ->group(kGroup)
      ->check(CLI::IsMember({"pebble", "mmlu"}))
      ->capture_default_str();
  command
      ->add_option("--n", flags->num_items,
                   "Ask only so many, drawn with --seed so that every task or subject keeps its "
                   "share (default: all)")
      ->group(kGroup)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_option("--seed", flags->seed, "Of that draw")->group(kGroup)->capture_default_str();
  command->add_option("--data", flags->data, "mmlu: folder with dev/ and test/ of the public CSVs")
      ->group(kGroup);
  command->add_option("--split", flags->split, "mmlu: which questions are asked")
      ->group(kGroup)
      ->check(CLI::IsMember({"test", "val"}))
      ->capture_default_str();
  command->add_option("--items", flags->items, "pebble: another set of the same form")
      ->group(kGroup);
  command
      ->add_option("--answers", flags->answers,
                   "pebble: recorded answers to compare with (default: MODEL-answers.jsonl beside "
                   "the model, if there; MODEL-answers-bf16.jsonl are the reference's in bf16)")
      ->group(kGroup);
  command
      ->add_option("--save-answers", flags->save_answers,
                   "pebble: write the answers to this file, in the form --answers reads")
      ->group(kGroup);
  command
      ->add_option("--concurrency", flags->concurrency,
                   "Requests in flight; changes speed and memory alone")
      ->group(kGroup)
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_flag("--verbose", flags->verbose,
                    "Show all answers that differ from the recorded, whole");
  command->add_flag("--json", flags->json, "Print one JSON object: accuracy, tasks, agreement");
  flags->model.AddTo(*command);
  flags->model.drafting.AddTo(*command);
  command->footer(
      "Recorded answers are compared twice. same_answer counts the items whose answer is the "
      "recorded one token for token. same_verdict counts those that the judge finds right in both "
      "or wrong in both: two numerically sound runs may part at a near-tie, and one of them may "
      "still be no worse. Items that differ are listed with the first differing token (counted "
      "from 0) and how either answer goes on.\n"
      "JSON keys: suite, model, accuracy, correct, count, tasks{}; agreement{answers, count, "
      "same_answer, same_verdict, differences[{id, position, same_verdict, correct, text, "
      "continuation, reference_correct, reference_text, reference_continuation}]}.");
}

}  // namespace lapidary
