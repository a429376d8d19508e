// Constrained answers of the bundled model, on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
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

  static std::unique_ptr<Session> Load(LoadOptions load, const EngineOptions& engine = {},
                                       bool jump_forward = false) {
    auto files = ModelFiles::Open(LAPIDARY_SOURCE_DIR "/models/pebble-e");
    EXPECT_TRUE(files.ok()) << files.error().message;
    load.limits.max_model_len = 512;
    auto session = Session::Load(std::move(*files),
                                 {.load = load, .engine = engine, .jump_forward = jump_forward});
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

TEST_F(ConstrainedAnswerTest, JumpsChangeNeitherForcedTextNorWhatIsSampledBetween) {
  const Constraint constraint = {
      .kind = Constraint::Kind::kToolCalls,
      .tools = {{.name = "book_a_table",
                 .parameters = R"({"type": "object", "properties": {"number_of_guests": {"type":
                               "integer", "minimum": 1, "maximum": 9}, "restaurant": {"type":
                               "string", "maxLength": 20}, "smoking_allowed": {"type": "boolean"}},
                               "required": ["number_of_guests", "restaurant",
                               "smoking_allowed"]})"}},
      .must_call = true};
  LoadOptions plain;
  plain.drafting.enabled = false;
  const auto jumping = Load(plain, {}, /*jump_forward=*/true);
  std::vector<Request> jumped;
  std::vector<Request> sampled;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Request request = Ask("A table for two, please", constraint, seed);
    request.grammar = jumping->CompileConstraint(constraint).value();
    auto sampling = std::make_shared<SamplingParams>(*request.sampling);
    if (seed % 2 == 0) sampling->repetition_penalty = 1.3f;
    request.sampling = sampling;
    jumped.push_back(request);
    sampling = std::make_shared<SamplingParams>(*sampling);
    sampling->num_logprobs = 0;  // They come from sampled rows: nothing is jumped over.
    request.sampling = sampling;
    sampled.push_back(request);
  }
  const auto expected = jumping->RunAll(sampled, 6, [] {});
  ASSERT_TRUE(expected.ok()) << expected.error().message;
  const uint64_t num_steps = jumping->engine().stats().num_steps;
  const auto together = jumping->RunAll(jumped, 6, [] {});
  EXPECT_EQ(*together, *expected);
  EXPECT_LT(jumping->engine().stats().num_steps - num_steps, num_steps * 2 / 3);
  for (size_t i = 0; i < jumped.size(); ++i) ExpectFits(jumped[i], (*together)[i]);

  LoadOptions drafted;
  drafted.drafting.adapt = false;
  drafted.drafting.num_drafts = 3;
  LoadOptions small = drafted;
  small.limits.max_num_batched_tokens = 7;
  for (const auto& [load, overlap] :
       {std::pair(plain, false), std::pair(drafted, true), std::pair(small, true)}) {
    EngineOptions engine;
    engine.overlap = overlap;
    engine.check_kv = true;
    EXPECT_EQ(*Load(load, engine)->RunAll(jumped, 6, [] {}), *expected);
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
  for (const bool jumps : {false, true}) {
    std::vector<Request> requests;
    const auto first = Load(plain, {}, jumps);
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
    for (const LoadOptions& mode : {plain, drafted}) {
      EngineOptions engine;
      engine.check_kv = true;
      EXPECT_EQ(*Load(mode, engine, jumps)->RunAll(cut, 32, [] {}), expected) << jumps;
    }
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
