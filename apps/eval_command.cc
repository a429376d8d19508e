// `lapidary eval`: questions with known answers, and how many a model gets right.
#include <cstdio>
#include <functional>

#include "apps/commands.h"
#include "apps/draft_report.h"
#include "apps/model_flags.h"
#include "base/progress.h"
#include "eval/agreement.h"
#include "eval/mmlu.h"
#include "eval/pebble_media.h"
#include "eval/pebble_suite.h"
#include "eval/subset.h"
#include "session/bundled_models.h"

namespace lapidary {
namespace {

constexpr const char* kPebbleItems = "pebble-eval.jsonl";
constexpr const char* kPebbleMediaItems = "pebble-media-eval.jsonl";

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

// A session with room for all of the requests.
Result<std::unique_ptr<Session>> LoadFor(const EvalFlags& flags, const ModelFiles& files,
                                         const std::vector<const std::vector<Request>*>& lists) {
  int64_t max_tokens = 0;
  size_t num_requests = 0;
  for (const std::vector<Request>* requests : lists) {
    for (const Request& request : *requests) {
      const std::vector<int32_t>& ids = request.prompt.ids;
      RETURN_IF_ERROR(CheckPrompt(files.description.plan, ids, *request.max_new_tokens));
      max_tokens = std::max(max_tokens, std::ssize(ids) + *request.max_new_tokens);
    }
    num_requests = std::max(num_requests, requests->size());
  }
  const auto in_flight = std::min<int64_t>(flags.concurrency, static_cast<int64_t>(num_requests));
  return flags.model.LoadSession(files, max_tokens, static_cast<int>(in_flight));
}

// The outputs of all requests, with a progress line.
Result<std::vector<std::vector<int32_t>>> RunAll(const EvalFlags& flags, Session& session,
                                                 const char* suite, std::vector<Request> requests) {
  const auto num_requests = static_cast<int64_t>(requests.size());
  const auto in_flight = static_cast<int>(std::min<int64_t>(flags.concurrency, num_requests));
  Progress progress(suite, num_requests, Progress::Unit::kItems);
  return session.RunAll(std::move(requests), in_flight, [&] { progress.Advance(1); });
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

// Items of a Pebble set, ready to be asked.
struct Questions {
  struct Item {
    std::string id;
    std::string task;
    std::string bin;
  };
  std::vector<Item> items;
  std::vector<Request> requests;  // as items
  std::function<PebbleAnswer(size_t place, std::vector<int32_t> ids)> judge;
  std::optional<std::filesystem::path> answers_path;  // those to compare with
  PebbleAnswers recorded;
};

// The answers to compare with: those named, or those found beside the model.
Status FindRecorded(const EvalFlags& flags, const ModelDescription& description,
                    std::string_view set, Questions* questions) {
  if (!flags.answers.empty()) {
    questions->answers_path = flags.answers;
  } else if (description.directory) {
    questions->answers_path = FindPebbleAnswers(*description.directory, set);
  }
  if (!questions->answers_path) return {};
  ASSIGN_OR_RETURN(questions->recorded, LoadPebbleAnswers(*questions->answers_path));
  for (const Questions::Item& item : questions->items) {
    if (questions->recorded.contains(item.id)) continue;
    return MakeError("{}: there is no recorded answer to item {}: it belongs to another set",
                     questions->answers_path->string(), item.id);
  }
  return {};
}

template <typename Item>
std::vector<size_t> ChooseItems(const EvalFlags& flags, const std::vector<Item>& items) {
  std::vector<std::string> task_of;
  for (const Item& item : items) task_of.push_back(item.task);
  return Choose(flags, task_of);
}

Result<std::string> ItemsPath(const EvalFlags& flags, const char* bundled) {
  if (!flags.items.empty()) return flags.items;
  return FindBundled(bundled);
}

Result<Questions> TextQuestions(const EvalFlags& flags, const ModelFiles& model) {
  ASSIGN_OR_RETURN(const std::string path, ItemsPath(flags, kPebbleItems));
  ASSIGN_OR_RETURN(const std::vector<PebbleItem> all, LoadPebbleItems(path));
  Questions questions;
  std::vector<PebbleItem> asked;
  for (const size_t idx : ChooseItems(flags, all)) {
    asked.push_back(all[idx]);
    questions.items.push_back({all[idx].id, all[idx].task, all[idx].bin});
  }
  RETURN_IF_ERROR(FindRecorded(flags, model.description, "answers", &questions));
  std::vector<bool> starts_in_thought;
  for (const PebbleItem& item : asked) {
    ASSIGN_OR_RETURN(Request request, MakePebbleRequest(*model.text, item));
    starts_in_thought.push_back(request.prompt.starts_in_thought);
    questions.requests.push_back(std::move(request));
  }
  questions.judge = [asked = std::move(asked), starts_in_thought = std::move(starts_in_thought),
                     text = model.text](size_t place, std::vector<int32_t> ids) {
    return JudgePebbleAnswer(*text->tokenizer, asked[place], starts_in_thought[place],
                             std::move(ids));
  };
  return questions;
}

// Of the kinds that the model's towers take; they are read for it, where the model will run.
Result<Questions> MediaQuestions(const EvalFlags& flags, const ModelFiles& model,
                                 const TowersPlan& towers) {
  ASSIGN_OR_RETURN(const std::string path, ItemsPath(flags, kPebbleMediaItems));
  ASSIGN_OR_RETURN(std::vector<PebbleMediaItem> all, LoadPebbleMediaItems(path));
  std::erase_if(all, [&](const PebbleMediaItem& item) {
    return item.is_picture() ? !towers.has_vision() : !towers.has_audio();
  });
  if (all.empty())
    return MakeError("{} takes nothing that {} asks about", model.description.name, path);
  Questions questions;
  std::vector<PebbleMediaItem> asked;
  for (const size_t idx : ChooseItems(flags, all)) {
    asked.push_back(all[idx]);
    questions.items.push_back({all[idx].id, all[idx].task, ""});
  }
  RETURN_IF_ERROR(FindRecorded(flags, model.description, "media-answers", &questions));
  ASSIGN_OR_RETURN(const DeviceChoice device, ChooseDevice(flags.model.device));
  ASSIGN_OR_RETURN(const auto encoder,
                   MediaEncoder::Load(towers, *model.description.towers, towers.has_vision(),
                                      towers.has_audio(), flags.model.NumThreads(), device));
  for (const PebbleMediaItem& item : asked) {
    ASSIGN_OR_RETURN(Request request,
                     MakePebbleMediaRequest(*model.text, model.description.plan, *encoder, item));
    questions.requests.push_back(std::move(request));
  }
  questions.judge = [asked = std::move(asked), text = model.text](size_t place,
                                                                  std::vector<int32_t> ids) {
    return JudgePebbleMediaAnswer(*text->tokenizer, asked[place], std::move(ids));
  };
  return questions;
}

struct Judged {
  std::vector<PebbleAnswer> answers;
  Scores scores;
  Json agreement;  // null: there is nothing to compare with
  std::string agreement_text;
};

Judged Judge(const EvalFlags& flags, const ModelFiles& model, const Questions& questions,
             std::vector<std::vector<int32_t>> outputs) {
  Judged judged;
  std::vector<PebbleAnswer> references;
  for (size_t place = 0; place < questions.items.size(); ++place) {
    const Questions::Item& item = questions.items[place];
    judged.answers.push_back(questions.judge(place, std::move(outputs[place])));
    judged.scores.Add(item.task, item.bin, judged.answers.back().is_right);
    // Judged again: the verdict on both is one judge's.
    if (questions.answers_path) {
      references.push_back(questions.judge(place, questions.recorded.at(item.id).ids));
    }
  }
  if (!questions.answers_path) return judged;
  const std::string path = questions.answers_path->string();
  const Agreement agreement = CompareAnswers(*model.text->tokenizer, judged.answers, references);
  judged.agreement = agreement.ToJson();
  judged.agreement["answers"] = path;
  judged.agreement_text = "\n" + agreement.ToText(path, flags.verbose);
  return judged;
}

// The bundled set, all of it, has questions about images and audio for models that take any.
Result<std::optional<TowersPlan>> AskedTowers(const EvalFlags& flags, const ModelFiles& model) {
  const bool is_whole = flags.num_items == 0 && flags.items.empty() && flags.answers.empty() &&
                        flags.save_answers.empty();
  const bool asks_media_alone = flags.suite == "pebble-media";
  if (!asks_media_alone && !(is_whole && FindBundled(kPebbleMediaItems).ok())) {
    return std::optional<TowersPlan>();
  }
  ASSIGN_OR_RETURN(TowersPlan towers,
                   MakeTowersPlan(model.description.config, model.description.name));
  if (model.description.towers && (towers.has_vision() || towers.has_audio())) {
    return std::optional(std::move(towers));
  }
  if (!asks_media_alone) return std::optional<TowersPlan>();
  return MakeError("{} takes neither images nor audio", model.description.name);
}

Status EvalPebble(const EvalFlags& flags) {
  ASSIGN_OR_RETURN(const ModelFiles model, OpenModel(flags));
  ASSIGN_OR_RETURN(const std::optional<TowersPlan> towers, AskedTowers(flags, model));
  const bool asks_text = flags.suite == "pebble";
  Questions questions;  // the suite's own
  Questions beside;     // about images and audio, where the suite is text
  if (asks_text) {
    ASSIGN_OR_RETURN(questions, TextQuestions(flags, model));
  }
  if (towers) {
    ASSIGN_OR_RETURN((asks_text ? beside : questions), MediaQuestions(flags, model, *towers));
  }
  // What would be refused after the run is refused before it.
  if (!flags.save_answers.empty()) {
    RETURN_IF_ERROR(SavePebbleAnswers({}, flags.save_answers));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                   LoadFor(flags, model, {&questions.requests, &beside.requests}));
  ASSIGN_OR_RETURN(auto outputs,
                   RunAll(flags, *session, flags.suite.c_str(), std::move(questions.requests)));
  const DraftStats drafts = session->engine().stats().drafts;
  const Judged judged = Judge(flags, model, questions, std::move(outputs));
  if (!flags.save_answers.empty()) {
    RETURN_IF_ERROR(SavePebbleAnswers(judged.answers, flags.save_answers));
  }
  Json json = Json::object();
  if (!judged.agreement.is_null()) json["agreement"] = judged.agreement;
  json["drafting"] = DraftReport(drafts);
  std::string remarks = judged.agreement_text + DraftReportText(drafts);
  if (!beside.items.empty()) {
    ASSIGN_OR_RETURN(auto seen,
                     RunAll(flags, *session, "pebble-media", std::move(beside.requests)));
    const Judged media = Judge(flags, model, beside, std::move(seen));
    json["media"] = media.scores.ToJson();
    if (!media.agreement.is_null()) json["media"]["agreement"] = media.agreement;
    remarks += "\nabout pictures and sounds:\n" + media.scores.ToText() + media.agreement_text;
  }
  Print(flags, judged.scores, std::move(json), remarks);
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
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                   LoadFor(flags, model, {&requests.requests}));
  ASSIGN_OR_RETURN(const auto outputs,
                   RunAll(flags, *session, "mmlu", std::move(requests.requests)));

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
        RETURN_IF_ERROR(flags->model.Find(/*media=*/flags->suite != "mmlu", /*drafts=*/true));
        return flags->suite == "mmlu" ? EvalMmlu(*flags) : EvalPebble(*flags);
      });
  constexpr const char* kGroup = "Questions";
  command
      ->add_option("--suite", flags->suite,
                   "pebble: the bundled 500 tasks of a small made-up world, and beside them 150 "
                   "questions about drawn pictures and sounds for a model that takes any "
                   "(pebble-media: those alone); mmlu: 5-shot, from --data")
      ->group(kGroup)
      ->check(CLI::IsMember({"pebble", "pebble-media", "mmlu"}))
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
  flags->model.lora.AddTo(*command);
  flags->model.drafting.AddTo(*command);
  command->footer(
      "Recorded answers are compared twice. same_answer counts the items whose answer is the "
      "recorded one token for token. same_verdict counts those that the judge finds right in both "
      "or wrong in both: two numerically sound runs may part at a near-tie, and one of them may "
      "still be no worse. Items that differ are listed with the first differing token (counted "
      "from 0) and how either answer goes on.\n"
      "JSON keys: suite, model, accuracy, correct, count, tasks{}; media{}, with the same for the "
      "questions about pictures and sounds; agreement{answers, count, "
      "same_answer, same_verdict, differences[{id, position, same_verdict, correct, text, "
      "continuation, reference_correct, reference_text, reference_continuation}]}.");
}

}  // namespace lapidary
