// Constrained answers of the bundled model, on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "session/answer_rules.h"
#include "session/session.h"

namespace lapidary {
namespace {

using grammar::Constraint;

class ConstrainedAnswerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { session_ = Load({}).release(); }
  static void TearDownTestSuite() { delete session_; }

  static std::unique_ptr<Session> Load(LoadOptions load, const EngineOptions& engine = {}) {
    auto files = ModelFiles::Open(LAPIDARY_SOURCE_DIR "/models/pebble-e");
    EXPECT_TRUE(files.ok()) << files.error().message;
    load.limits.max_model_len = 512;
    auto session = Session::Load(std::move(*files), {.load = load, .engine = engine});
    EXPECT_TRUE(session.ok()) << session.error().message;
    return std::move(*session);
  }

  static constexpr int32_t kMinTokens = 60;
  // No end before kMinTokens, and a few common words left out.
  static Constraint WithRules(const Constraint& constraint) {
    std::optional<Constraint> ruled = constraint;
    const Status added =
        AddRules({.min_tokens = kMinTokens, .bad_words = {"very", "small", "heart"}},
                 session_->text(), &ruled);
    EXPECT_TRUE(added.ok()) << added.error().message;
    return *ruled;
  }

  static Request Ask(const std::string& question, const Constraint& constraint, uint64_t seed) {
    ChatInput input;
    input.messages = nlohmann::ordered_json::array({{{"role", "user"}, {"content", question}}});
    Request request;
    request.prompt = *EncodeChatPrompt(session_->text(), std::move(input));
    request.max_new_tokens = 120;
    auto sampling = std::make_shared<SamplingParams>(session_->text().defaults.sampling);
    sampling->temperature = 1.5f;
    sampling->seed = seed;
    request.sampling = sampling;
    auto compiled = session_->CompileConstraint(constraint);
    EXPECT_TRUE(compiled.ok()) << compiled.error().message;
    request.grammar = *compiled;
    return request;
  }

  // Ids, each allowed by the grammar after those before it; the answer ended by itself.
  static void ExpectFits(const Request& request, const std::vector<int32_t>& ids) {
    grammar::Matcher matcher(request.grammar);
    for (const int32_t id : ids) ASSERT_TRUE(*matcher.Accept(id)) << id;
    EXPECT_TRUE(matcher.IsTerminated());
  }

  static Session* session_;
};

Session* ConstrainedAnswerTest::session_ = nullptr;

TEST_F(ConstrainedAnswerTest, EveryAnswerFitsAloneAndInABatch) {
  const Constraint constraint = {
      .kind = Constraint::Kind::kJsonSchema,
      .text = R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
              "age": {"type": "integer", "minimum": 7, "maximum": 120}, "tags": {"type": "array",
              "items": {"enum": ["a", "b"]}, "maxItems": 2}}, "required": ["name", "age"],
              "additionalProperties": false})"};
  std::vector<Request> requests;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    requests.push_back(Ask("Tell me about the weather on Mars", constraint, seed));
  }
  const auto together = session_->RunAll(requests, 8, [] {});
  ASSERT_TRUE(together.ok()) << together.error().message;
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectFits(requests[i], (*together)[i]);
    const auto alone = session_->RunAll({requests[i]}, 1, [] {});
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ((*alone)[0], (*together)[i]);
  }
}

// Or its memory would be taken until another sequence has its slot, and other forms be refused.
TEST_F(ConstrainedAnswerTest, AFormIsHeldByNoSlotOnceItsAnswersAreDone) {
  const auto expect_free = [](const std::string& pattern) {
    const Request request =
        Ask("Who are you?", {.kind = Constraint::Kind::kRegex, .text = pattern}, 1);
    ASSERT_TRUE(session_->RunAll({request, request, request}, 3, [] {}).ok());
    constexpr long kHolders = 2;  // the request here, and the compiler that keeps it
    for (int wait = 0; request.grammar.use_count() > kHolders && wait < 10'000; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(request.grammar.use_count(), kHolders);
  };
  expect_free("[a-c]{3,9}");
  Request beside;
  beside.prompt.ids = {2, 3, 4};
  beside.ignore_eos = true;
  auto running = session_->Start(beside);
  ASSERT_TRUE(running.ok()) << running.error().message;
  expect_free("[d-f]{3,9}");
}

TEST_F(ConstrainedAnswerTest, ADemandedCallIsMade) {
  const Constraint constraint = {
      .kind = Constraint::Kind::kToolCalls,
      .tools = {{.name = "weather",
                 .parameters = R"({"type": "object", "properties": {"place": {"enum": ["here",
                               "there"]}, "days": {"type": "integer", "minimum": 1, "maximum": 3}},
                               "required": ["days", "place"]})"}},
      .must_call = true,
      .many_calls = false};
  const Request request = Ask("Who are you?", constraint, 1);
  const auto answer = session_->RunAll({request}, 1, [] {});
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  ExpectFits(request, (*answer)[0]);
}

TEST_F(ConstrainedAnswerTest, AnswersKeepTheRulesOfTheirTokens) {
  const auto say = [&](const Constraint& constraint, uint64_t seed) {
    const auto ids = session_->RunAll({Ask("Who are you?", constraint, seed)}, 1, [] {});
    EXPECT_TRUE(ids.ok()) << ids.error().message;
    return (*ids)[0];
  };
  const Constraint anything = {.kind = Constraint::Kind::kAnything};
  const Constraint ruled = WithRules(anything);
  const auto num_banned = [&](const std::vector<int32_t>& ids) {
    return std::ranges::count_if(ruled.rules.banned_runs, [&](const std::vector<int32_t>& run) {
      return !std::ranges::search(ids, run).empty();
    });
  };
  int num_short = 0;
  int num_with_words = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const std::vector<int32_t> free = say(anything, seed);
    num_short += std::ssize(free) <= kMinTokens;
    const std::string text = session_->text().tokenizer->Decode(free, true).value();
    num_with_words += text.find("very") != std::string::npos;
    const std::vector<int32_t> ids = say(ruled, seed);
    EXPECT_GT(std::ssize(ids), kMinTokens) << "and what ends it";
    EXPECT_EQ(num_banned(ids), 0);
  }
  EXPECT_GT(num_short, 0) << "without the rules some are shorter";
  EXPECT_GT(num_with_words, 0);
}

TEST_F(ConstrainedAnswerTest, AnswersAreTheSameDraftedAndInSmallSteps) {
  const std::vector<Constraint> constraints = {
      {.kind = Constraint::Kind::kJsonSchema,
       .text = R"({"type": "array", "items": {"type": "string", "pattern": "^[a-z ]{3,30}$"},
               "minItems": 3, "maxItems": 4})",
       .thought = Constraint::Thought::kMayOpen,
       .max_thought_tokens = 9},
      {.kind = Constraint::Kind::kToolCalls,
       .tools = {{.name = "note", .parameters = R"({"type": "object", "properties": {"text":
                 {"type": "string", "maxLength": 40}}, "required": ["text"]})"}},
       .must_call = true},
      {.kind = Constraint::Kind::kRegex, .text = "([a-z]{2,7} ){5,12}"},
      {.kind = Constraint::Kind::kAnything,
       .thought = Constraint::Thought::kMayOpen,
       .max_thought_tokens = 4},
      WithRules({.kind = Constraint::Kind::kAnything}),
      WithRules({.kind = Constraint::Kind::kRegex, .text = "([a-z]{2,7} ){2,30}"})};
  std::vector<Request> requests;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    requests.push_back(Ask("Tell me about the weather on Mars", constraints[seed % 6], seed));
    auto sampling = std::make_shared<SamplingParams>(*requests.back().sampling);
    if (seed % 3 == 0) sampling->repetition_penalty = 1.2f;
    if (seed % 5 == 0) sampling->temperature = 0.0f;
    requests.back().sampling = sampling;
  }
  LoadOptions plain;
  plain.drafting.enabled = false;
  const auto expected = Load(plain)->RunAll(requests, 24, [] {});
  ASSERT_TRUE(expected.ok()) << expected.error().message;

  LoadOptions drafted;
  drafted.drafting.adapt = false;
  drafted.drafting.num_drafts = 3;
  LoadOptions coupled = drafted;
  coupled.drafting.draw = DraftDraw::kCoupled;
  LoadOptions small_steps = drafted;
  small_steps.limits.max_num_batched_tokens = 11;
  for (const LoadOptions& mode : {drafted, coupled, small_steps}) {
    const auto session = Load(mode);
    const auto answers = session->RunAll(requests, 24, [] {});
    ASSERT_TRUE(answers.ok()) << answers.error().message;
    EXPECT_EQ(*answers, *expected);
    EXPECT_GT(session->engine().stats().drafts.num_accepted, 0u);
  }
}

// An order of things with names of some length: what a schema forces is most of an answer.
constexpr const char* kOrder = R"({"type": "object", "additionalProperties": false,
    "properties": {"customer_reference": {"type": "string", "maxLength": 12},
                   "number_of_articles": {"type": "integer", "minimum": 1, "maximum": 9},
                   "delivery_address": {"type": "object", "additionalProperties": false,
                       "properties": {"street_and_number": {"type": "string", "maxLength": 16},
                                      "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"}},
                       "required": ["street_and_number", "postal_code"]},
                   "gift_wrapping_requested": {"type": "boolean"}},
    "required": ["customer_reference", "number_of_articles", "delivery_address",
                 "gift_wrapping_requested"]})";

TEST_F(ConstrainedAnswerTest, DraftedTextChangesNoAnswerOfAnyForm) {
  const auto tools = [](bool must_call) {
    return Constraint{.kind = Constraint::Kind::kToolCalls,
                      .tools = {{.name = "order_articles", .parameters = kOrder},
                                {.name = "order_status", .parameters = kOrder}},
                      .must_call = must_call};
  };
  const std::vector<Constraint> constraints = {
      {.kind = Constraint::Kind::kJsonSchema, .text = kOrder},
      {.kind = Constraint::Kind::kJsonObject},
      {.kind = Constraint::Kind::kRegex,
       .text = "the answer, they say, is [a-f]{2,9}!( Or is it [a-f]{2,9}\\?){2}"},
      {.kind = Constraint::Kind::kChoice,
       .choices = {"the first of them, as ever", "the second, which is larger"}},
      {.kind = Constraint::Kind::kGrammar,
       .text = "root ::= (\"record \" [a-f]{1,3} \" of the \" [g-k]+ \"; \"){3,6}"},
      tools(true),
      tools(false),
      WithRules({.kind = Constraint::Kind::kJsonSchema, .text = kOrder})};
  std::vector<Request> requests;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    requests.push_back(Ask("I want to order two boats.", constraints[seed % 8], seed));
    auto sampling = std::make_shared<SamplingParams>(*requests.back().sampling);
    if (seed % 3 == 0) sampling->repetition_penalty = 1.3f;
    if (seed % 4 == 0) sampling->temperature = 0.0f;
    if (seed % 5 == 0) sampling->num_logprobs = 2;
    requests.back().sampling = sampling;
  }
  LoadOptions plain;
  plain.drafting.enabled = false;
  const auto expected = Load(plain)->RunAll(requests, 16, [] {});
  ASSERT_TRUE(expected.ok()) << expected.error().message;
  LoadOptions without_assistant;
  without_assistant.drafting.num_drafts = 0;
  LoadOptions small = without_assistant;
  small.limits.max_num_batched_tokens = 7;
  LoadOptions assisted;
  assisted.drafting.adapt = false;
  assisted.drafting.num_drafts = 3;
  for (const LoadOptions& load : {without_assistant, small, assisted}) {
    for (const bool overlap : {false, true}) {
      EngineOptions engine;
      engine.overlap = overlap;
      engine.check_kv = true;
      const auto session = Load(load, engine);
      for (const int at_once : {1, 16}) {
        const auto answers = session->RunAll(requests, at_once, [] {});
        ASSERT_TRUE(answers.ok()) << answers.error().message;
        EXPECT_EQ(*answers, *expected) << at_once << " at once, overlap " << overlap;
      }
      const DraftStats drafts = session->engine().stats().drafts;
      EXPECT_GT(drafts.by_source[static_cast<int>(DraftSource::kForced)].num_accepted, 0u);
      EXPECT_EQ(drafts.by_source[static_cast<int>(DraftSource::kAssistant)].num_accepted > 0,
                load.drafting.num_drafts > 0);
    }
  }
}

// Asked one at a time, of which one greedily.
TEST_F(ConstrainedAnswerTest, DraftedTextSavesMostSteps) {
  const std::vector<Constraint> constraints = {
      {.kind = Constraint::Kind::kJsonSchema, .text = kOrder},
      {.kind = Constraint::Kind::kToolCalls,
       .tools = {{.name = "order_articles", .parameters = kOrder}},
       .must_call = true,
       .many_calls = false}};
  for (const Constraint& constraint : constraints) {
    std::array<uint64_t, 2> num_steps{};
    for (const bool is_drafted : {false, true}) {
      LoadOptions load;
      load.drafting.enabled = is_drafted;
      load.drafting.num_drafts = 0;  // by the assistant
      const auto session = Load(load);
      for (uint64_t seed = 0; seed < 8; ++seed) {
        Request request = Ask("I want to order two boats.", constraint, seed);
        request.max_new_tokens = 300;
        request.grammar = *session->CompileConstraint(constraint);
        auto sampling = std::make_shared<SamplingParams>(*request.sampling);
        sampling->temperature = seed == 0 ? 0.0f : 0.8f;
        request.sampling = sampling;
        ASSERT_TRUE(session->RunAll({request}, 1, [] {}).ok());
      }
      num_steps[is_drafted ? 1 : 0] = session->engine().stats().num_steps;
    }
    // Of the answers' tokens a third is chosen freely.
    EXPECT_LT(num_steps[1], 0.38 * static_cast<double>(num_steps[0]));
    EXPECT_GT(num_steps[1], 0u);
  }
}

TEST_F(ConstrainedAnswerTest, AnswersCutAnywhereGoOnTheSame) {
  const std::vector<Constraint> constraints = {
      {.kind = Constraint::Kind::kJsonSchema,
       .text = R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
               "ages": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}},
               "required": ["name", "ages"], "additionalProperties": false})",
       .thought = Constraint::Thought::kMayOpen,
       .max_thought_tokens = 9},
      {.kind = Constraint::Kind::kToolCalls,
       .tools = {{.name = "note", .parameters = R"({"type": "object", "properties": {"text":
                 {"type": "string", "maxLength": 30}}, "required": ["text"]})"}},
       .must_call = true},
      WithRules({.kind = Constraint::Kind::kAnything}),
      WithRules({.kind = Constraint::Kind::kRegex, .text = "([a-z]{2,7} ){2,30}"})};
  LoadOptions plain;
  plain.drafting.enabled = false;
  LoadOptions drafted;
  drafted.drafting.adapt = false;
  drafted.drafting.num_drafts = 3;
  LoadOptions text;
  text.drafting.num_drafts = 0;
  std::vector<Request> requests;
  const auto first = Load(plain);
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Constraint& constraint = constraints[seed % constraints.size()];
    Request request = Ask("Tell me about the weather on Mars", constraint, seed);
    request.grammar = first->CompileConstraint(constraint).value();
    auto sampling = std::make_shared<SamplingParams>(*request.sampling);
    if (seed % 2 == 0) sampling->repetition_penalty = 1.2f;
    request.sampling = sampling;
    requests.push_back(std::move(request));
  }
  const auto whole = first->RunAll(requests, 8, [] {});
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  std::vector<Request> cut;
  std::vector<std::vector<int32_t>> expected;
  for (size_t idx = 0; idx < requests.size(); ++idx) {
    const std::vector<int32_t>& ids = (*whole)[idx];
    for (auto at = ids.begin() + 1; at != ids.end(); ++at) {
      cut.push_back(requests[idx]);
      cut.back().generated = {ids.begin(), at};
      expected.emplace_back(at, ids.end());
    }
  }
  for (const LoadOptions& mode : {plain, text, drafted}) {
    EngineOptions engine;
    engine.check_kv = true;
    EXPECT_EQ(*Load(mode, engine)->RunAll(cut, 32, [] {}), expected);
  }
}

TEST_F(ConstrainedAnswerTest, TokensThatTheFormDoesNotAllowAreNotGoneOnFrom) {
  const Constraint constraint = {.kind = Constraint::Kind::kChoice, .choices = {"yes", "no"}};
  Request request = Ask("Is it?", constraint, 1);
  request.generated = session_->text().tokenizer->Encode("maybe", SpecialTokens::kPlain);
  const auto refused = session_->RunAll({request}, 1, [] {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("resume: token 0"), std::string::npos)
      << refused.error().message;
}

TEST_F(ConstrainedAnswerTest, TheSameConstraintIsCompiledOnce) {
  const Constraint constraint = {.kind = Constraint::Kind::kChoice, .choices = {"yes", "no"}};
  EXPECT_EQ(*session_->CompileConstraint(constraint), *session_->CompileConstraint(constraint));
}

}  // namespace
}  // namespace lapidary
