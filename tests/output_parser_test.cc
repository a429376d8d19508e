#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "text/chat_template.h"

namespace lapidary {
namespace {

using Json = nlohmann::ordered_json;
using Tokens = std::vector<std::pair<int, std::string>>;
using Kind = OutputEvent::Kind;

constexpr std::pair<std::string_view, int> kSpecials[] = {
    {"<|channel>", 100},      {"<channel|>", 101}, {"<|tool_call>", 48}, {"<tool_call|>", 49},
    {"<|tool_response>", 50}, {"<|\"|>", 52},      {"<turn|>", 106},     {"<eos>", 1}};
constexpr int kPlain = 9999;

// Special tokens by id, everything between them as one plain piece.
Tokens Tokenize(std::string_view text) {
  Tokens tokens;
  std::string plain;
  const auto flush = [&] {
    if (!plain.empty()) tokens.emplace_back(kPlain, std::exchange(plain, {}));
  };
  while (!text.empty()) {
    bool special = false;
    for (const auto& [spelling, id] : kSpecials) {
      if (!text.starts_with(spelling)) continue;
      flush();
      tokens.emplace_back(id, spelling);
      text.remove_prefix(spelling.size());
      special = true;
      break;
    }
    if (special) continue;
    plain.push_back(text.front());
    text.remove_prefix(1);
  }
  flush();
  return tokens;
}

ParsedOutput Parse(std::string_view text, OutputParserOptions options = {}) {
  return ParseAll(Tokenize(text), std::move(options));
}

std::vector<OutputEvent> Events(const Tokens& tokens, const OutputParserOptions& options) {
  std::vector<OutputEvent> events;
  OutputParser parser(options);
  for (const auto& [id, text] : tokens) parser.Push(id, text, &events);
  parser.Finish(&events);
  return events;
}

std::vector<OutputEvent> Events(std::string_view text, const OutputParserOptions& options = {}) {
  return Events(Tokenize(text), options);
}

// The rows of the table of situations.

TEST(OutputParser, PlainTextIsContent) {
  const auto output = Parse("Hello<turn|>");
  EXPECT_EQ(output.content, "Hello");
  EXPECT_EQ(output.reasoning, "");
}

TEST(OutputParser, ThoughtThenAnswer) {
  const auto output = Parse("<|channel>thought\nLet me see.\n<channel|>Hi<turn|>");
  EXPECT_EQ(output.reasoning, "Let me see.");
  EXPECT_EQ(output.content, "Hi");
}

TEST(OutputParser, OnlyOneTrailingNewlineOfReasoningIsDropped) {
  EXPECT_EQ(Parse("<|channel>thought\na\n\n<channel|>").reasoning, "a\n");
  EXPECT_EQ(Parse("<|channel>thought\na\nb<channel|>").reasoning, "a\nb");
}

TEST(OutputParser, PromptInsideAnOpenChannelStartsInReasoning) {
  OutputParserOptions options;
  options.starts_in_thought = true;
  const auto output = Parse("I know.\n<channel|>15 degrees<turn|>", options);
  EXPECT_EQ(output.reasoning, "I know.");
  EXPECT_EQ(output.content, "15 degrees");
}

TEST(OutputParser, LabelArrivingInPiecesIsStripped) {
  const Tokens tokens = {{100, ""},      {kPlain, "tho"}, {kPlain, "ught"},
                         {kPlain, "\n"}, {kPlain, "x"},   {101, ""}};
  EXPECT_EQ(ParseAll(tokens, {}).reasoning, "x");
}

TEST(OutputParser, DivergingLabelIsReleased) {
  EXPECT_EQ(Parse("<|channel>thousand things<channel|>").reasoning, "thousand things");
  EXPECT_EQ(Parse("<|channel>thoughtful<channel|>").reasoning, "thoughtful");
  EXPECT_EQ(Parse("<|channel>tho<channel|>").reasoning, "tho");
}

TEST(OutputParser, EmptyThoughtsGiveNothing) {
  for (const char* text : {"<|channel>thought<channel|>Hi", "<|channel>thought\n<channel|>Hi",
                           "<|channel><channel|>Hi", "<|channel>thought\n\n<channel|>Hi"}) {
    const auto events = Events(text);
    ASSERT_EQ(events.size(), 1) << text;
    EXPECT_EQ(events[0], (OutputEvent{Kind::kContent, "Hi"}));
  }
}

TEST(OutputParser, EmptyThoughtOrLoneCloseAfterTheAnswerIsDropped) {
  EXPECT_EQ(Parse("Hi<|channel>thought\n<channel|><turn|>").content, "Hi");
  EXPECT_EQ(Parse("Hi<channel|><turn|>").content, "Hi");
  const auto output = Parse("<|channel>thought\nx<channel|>Hi<channel|><turn|>");
  EXPECT_EQ(output.content, "Hi");
  EXPECT_EQ(output.reasoning, "x");
}

TEST(OutputParser, DoubledChannelCountsOnce) {
  const auto output = Parse("<|channel><|channel>thought\nx<channel|>y");
  EXPECT_EQ(output.reasoning, "x");
  EXPECT_EQ(output.content, "y");
}

TEST(OutputParser, AnotherLabelIsReasoning) {
  EXPECT_EQ(Parse("<|channel>analysis\nx<channel|>y").reasoning, "analysis\nx");
}

TEST(OutputParser, CallInsideAnOpenThoughtEndsIt) {
  const auto output =
      Parse("<|channel>thought\nuse it<|tool_call>call:f{}<tool_call|><|tool_response>");
  EXPECT_EQ(output.reasoning, "use it");
  ASSERT_EQ(output.tool_calls.size(), 1);
  EXPECT_EQ(output.tool_calls[0].name, "f");
  EXPECT_EQ(output.content, "");
}

TEST(OutputParser, CloseWithoutOpeningMakesEarlierTextReasoningWhenWhole) {
  const auto output = Parse("thought\nhm\n<channel|>Hi<turn|>");
  EXPECT_EQ(output.reasoning, "hm");
  EXPECT_EQ(output.content, "Hi");
}

TEST(OutputParser, TextAroundCallsIsContent) {
  const auto output = Parse("A<|tool_call>call:f{}<tool_call|>B<|tool_call>call:g{}<tool_call|>C");
  EXPECT_EQ(output.content, "ABC");
  ASSERT_EQ(output.tool_calls.size(), 2);
  EXPECT_EQ(output.tool_calls[1].name, "g");
}

TEST(OutputParser, StrayTokensAfterACallAreDropped) {
  const auto events = Events("<|tool_call>call:f{}<tool_call|><tool_call|><|tool_response>");
  const std::vector<OutputEvent> expected = {{Kind::kToolCallBegin, "f", 0},
                                             {Kind::kToolCallArguments, "{}", 0},
                                             {Kind::kToolCallEnd, "", 0}};
  EXPECT_EQ(events, expected);
}

TEST(OutputParser, BareThoughtLabelAtTheStartIsAnOption) {
  OutputParserOptions options;
  options.accept_bare_thought = true;
  EXPECT_EQ(Parse("thought\nhm\n<channel|>Hi", options).reasoning, "hm");
  EXPECT_EQ(Parse("thought experiment", options).content, "thought experiment");
  EXPECT_EQ(Parse("thought", options).content, "thought");
  EXPECT_EQ(Parse("I thought\nso", options).content, "I thought\nso");
  EXPECT_EQ(Events("thought\nhm")[0].kind, Kind::kContent);
}

TEST(OutputParser, CallClosedByTurnOrCutIsAcceptedWhenBalanced) {
  for (const char* end : {"<turn|>", "<eos>", "", "<|tool_response>"}) {
    const auto output = Parse(std::string("<|tool_call>call:f{a:1}") + end);
    ASSERT_EQ(output.tool_calls.size(), 1) << end;
    EXPECT_EQ(output.tool_calls[0].arguments, Json({{"a", 1}}));
    EXPECT_EQ(output.content, "");
  }
}

TEST(OutputParser, UnbalancedCallComesBackAsContent) {
  const auto output = Parse("<|tool_call>call:f{a:<|\"|>x<turn|>");
  EXPECT_TRUE(output.tool_calls.empty());
  EXPECT_EQ(output.content, "call:f{a:\"x");
}

TEST(OutputParser, CallWithoutItsTokenIsContent) {
  EXPECT_EQ(Parse("call:f{a:1}").content, "call:f{a:1}");
}

TEST(OutputParser, EndTokenDoesNotMatterForCalls) {
  EXPECT_EQ(Parse("<|tool_call>call:f{}<tool_call|><turn|>").tool_calls.size(), 1);
}

// Arguments.

TEST(OutputParser, ArgumentsOfEveryType) {
  const auto output = Parse(
      "<|tool_call>call:f{s:<|\"|>a {b}, [c]: "
      "d<|\"|>,i:42,f:-3.5e2,t:true,n:null,o:{x:{y:[1,[2]]}},"
      "e:{},l:[],<|\"|>odd:key<|\"|>:1, spaced : 7 ,word:maybe,cut:108.}<tool_call|>");
  ASSERT_EQ(output.tool_calls.size(), 1) << output.content;
  EXPECT_EQ(output.tool_calls[0].arguments,
            Json::parse(
                R"({"s":"a {b}, [c]: d","i":42,"f":-350.0,"t":true,"n":null,"o":{"x":{"y":[1,[2]]}},
                            "e":{},"l":[],"odd:key":1,"spaced":7,"word":"maybe","cut":"108."})"));
}

TEST(OutputParser, TokensSpelledAsTextInsideAStringStayText) {
  const Tokens tokens = {
      {48, ""}, {kPlain, "call:f{a:"}, {52, ""}, {kPlain, "<tool_call|> <|\"|> }"},
      {52, ""}, {kPlain, "}"},         {49, ""}};
  const auto output = ParseAll(tokens, {});
  ASSERT_EQ(output.tool_calls.size(), 1);
  EXPECT_EQ(output.tool_calls[0].arguments["a"], "<tool_call|> <|\"|> }");
}

TEST(OutputParser, SchemaTurnsNumbersIntoTheTextItAsksFor) {
  OutputParserOptions options;
  options.tools =
      Json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object",
      "properties":{"zip":{"type":"string"},"n":{"type":"integer"},"either":{"type":["string","integer"]},
      "any":{"anyOf":[{"type":"string"},{"type":"null"}]},"list":{"type":"array","items":{"type":"string"}},
      "o":{"type":"object","properties":{"id":{"type":"string"}}}}}}}])");
  const auto output = Parse(
      "<|tool_call>call:f{zip:01234,n:5,either:6,any:7,list:[1,true],o:{id:007},nil:null}<tool_"
      "call|>",
      options);
  ASSERT_EQ(output.tool_calls.size(), 1);
  EXPECT_EQ(
      output.tool_calls[0].arguments,
      Json::parse(R"({"zip":"01234","n":5,"either":6,"any":"7","list":["1","true"],"o":{"id":"007"},
                            "nil":null})"));
}

TEST(OutputParser, NameIsSentAtTheBraceAndArgumentsAtTheEnd) {
  OutputParser parser({});
  std::vector<OutputEvent> events;
  parser.Push(48, "", &events);
  parser.Push(kPlain, "call:get", &events);
  EXPECT_TRUE(events.empty());
  parser.Push(kPlain, "_it{", &events);
  ASSERT_EQ(events.size(), 1);
  EXPECT_EQ(events[0], (OutputEvent{Kind::kToolCallBegin, "get_it", 0}));
  parser.Push(kPlain, "a:1", &events);
  EXPECT_EQ(events.size(), 1);
  parser.Push(kPlain, "}", &events);
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(events[1], (OutputEvent{Kind::kToolCallArguments, "{\"a\":1}", 0}));
  EXPECT_EQ(events[2], (OutputEvent{Kind::kToolCallEnd, "", 0}));
}

TEST(OutputParser, StreamedArgumentsComeAsFarAsTheyAreCertain) {
  OutputParserOptions options;
  options.stream_arguments = true;
  OutputParser parser(options);
  const auto push = [&](int id, std::string_view text) {
    std::vector<OutputEvent> events;
    parser.Push(id, text, &events);
    std::string arguments;
    for (const OutputEvent& event : events) {
      if (event.kind == Kind::kToolCallArguments) arguments += event.text;
    }
    return arguments;
  };
  EXPECT_EQ(push(48, ""), "");
  EXPECT_EQ(push(kPlain, "call:f{pl"), "{");
  EXPECT_EQ(push(kPlain, "ace:"), "\"place\":");
  EXPECT_EQ(push(52, ""), "\"");
  EXPECT_EQ(push(kPlain, "Bern, \"CH\"\n"), "Bern, \\\"CH\\\"\\n");
  EXPECT_EQ(push(52, ""), "\"");
  EXPECT_EQ(push(kPlain, ", days: 1"), ",\"days\":") << "it may become 12";
  EXPECT_EQ(push(kPlain, "2, list:[tr"), "12,\"list\":[");
  EXPECT_EQ(push(kPlain, "ue]}"), "true]}");
  EXPECT_EQ(push(49, ""), "");
}

TEST(OutputParser, StreamedArgumentsJoinedAreTheWhole) {
  OutputParserOptions streamed;
  streamed.stream_arguments = true;
  for (const char* call :
       {"{}", "{a:1}", "{ a : x y ,b:[ ],c:{d:[1,[2.50,null]]}}", "{a:<|\"|><|\"|>}",
        "{<|\"|>a b<|\"|>:<|\"|>}\\\t\"{<|\"|>}", "{\"a\":\"b\",c:-1e3}", "{a:1,a:2}"}) {
    const std::string text = "<|tool_call>call:f" + std::string(call) + "<tool_call|>";
    EXPECT_EQ(Events(text, streamed), Events(text)) << call;
    EXPECT_EQ(Events(text).size(), 3u) << call;
  }
}

TEST(OutputParser, AStreamedCallThatBreaksStaysAsFarAsItCame) {
  OutputParserOptions options;
  options.stream_arguments = true;
  const std::vector<OutputEvent> broken = {{Kind::kToolCallBegin, "f", 0},
                                           {Kind::kToolCallArguments, "{\"a\":1", 0},
                                           {Kind::kToolCallEnd, "", 0},
                                           {Kind::kContent, "}B"}};
  EXPECT_EQ(Events("<|tool_call>call:f{a:1]}<tool_call|>B", options), broken);
  const std::vector<OutputEvent> cut = {{Kind::kToolCallBegin, "f", 0},
                                        {Kind::kToolCallArguments, "{\"a\":\"x", 0},
                                        {Kind::kToolCallEnd, "", 0}};
  EXPECT_EQ(Events("<|tool_call>call:f{a:<|\"|>x", options), cut);
  EXPECT_EQ(Events("<|tool_call>call f{}<tool_call|>", options),
            Events("<|tool_call>call f{}<tool_call|>"))
      << "before its name it is none";
}

TEST(OutputParser, UnparseableCallsAreContentWithoutSpecialTokens) {
  for (const char* call :
       {"call:f{a}", "call:f{a:}", "call:f{:1}", "call:{}", "call:f g{}", "hello", "call:f", "",
        "call:f{a:1]}", "call:f{a:<|\"|>x<|\"|>y}", "call:f{a:1,}", "call:<|\"|>f<|\"|>{}"}) {
    const auto output = Parse("A<|tool_call>" + std::string(call) + "<tool_call|>B");
    EXPECT_TRUE(output.tool_calls.empty()) << call;
    std::string readable = call;
    for (size_t at = 0; (at = readable.find("<|\"|>")) != std::string::npos;) {
      readable.replace(at, 5, "\"");
    }
    EXPECT_EQ(output.content, "A" + readable + "B") << call;
  }
}

TEST(OutputParser, AQuoteOutsideOfCallsIsAPlainOne) {
  EXPECT_EQ(Parse("a<|\"|>b<turn|>").content, "a\"b");
}

TEST(OutputParser, CancelledCallIsFollowedByItsText) {
  const auto events = Events("<|tool_call>call:f{a}<tool_call|><|tool_call>call:g{}<tool_call|>");
  const std::vector<OutputEvent> expected = {
      {Kind::kToolCallBegin, "f", 0},      {Kind::kToolCallCancel, "", 0},
      {Kind::kContent, "call:f{a}"},       {Kind::kToolCallBegin, "g", 1},
      {Kind::kToolCallArguments, "{}", 1}, {Kind::kToolCallEnd, "", 1}};
  EXPECT_EQ(events, expected);
}

TEST(OutputParser, HostileDepthAndSizeBecomeText) {
  const std::string deep = "call:f{a:" + std::string(100000, '[');
  EXPECT_EQ(Parse("<|tool_call>" + deep + "<turn|>").content, deep);
  OutputParserOptions options;
  options.max_call_bytes = 1000;
  const std::string large = "call:f{a:" + std::string(5000, 'x') + "}";
  EXPECT_EQ(Parse("<|tool_call>" + large + "<turn|>", options).content, large);
}

// Properties.

std::string RandomOutput(std::mt19937& random) {
  static const char* const kPieces[] = {"<|channel>",
                                        "<channel|>",
                                        "<|tool_call>",
                                        "<tool_call|>",
                                        "<|tool_response>",
                                        "<|\"|>",
                                        "<turn|>",
                                        "thought\n",
                                        "thought",
                                        "tho",
                                        "call:f{",
                                        "call:",
                                        "a:1",
                                        "}",
                                        "{",
                                        "[",
                                        "]",
                                        ",",
                                        "b:",
                                        "x y",
                                        "\n",
                                        "é世界",
                                        " "};
  std::string text;
  for (int count = std::uniform_int_distribution<>(0, 14)(random); count > 0; --count) {
    text += kPieces[std::uniform_int_distribution<size_t>(0, std::size(kPieces) - 1)(random)];
  }
  return text;
}

TEST(OutputParser, EventsDoNotDependOnHowTextIsCut) {
  std::mt19937 random(20260815);
  for (int round = 0; round < 20000; ++round) {
    const std::string text = RandomOutput(random);
    SCOPED_TRACE(text);
    OutputParserOptions options;
    options.starts_in_thought = round % 3 == 0;
    options.accept_bare_thought = round % 2 == 0;
    options.stream_arguments = round % 5 == 0;
    const Tokens whole = Tokenize(text);
    Tokens cut;
    for (const auto& [id, piece] : whole) {
      if (id != kPlain) {
        cut.emplace_back(id, piece);
        continue;
      }
      for (size_t offset = 0; offset < piece.size();) {
        const size_t length = std::uniform_int_distribution<size_t>(1, 3)(random);
        cut.emplace_back(kPlain, piece.substr(offset, length));
        offset += length;
      }
    }
    ASSERT_EQ(Events(cut, options), Events(whole, options));
  }
}

// Calls rendered by the template come back as the same arguments.
TEST(OutputParser, RenderedCallsParseBack) {
  const auto chat = ChatTemplate::FromFile(std::string(LAPIDARY_SOURCE_DIR) +
                                           "/tests/data/chat/gemma4_31b_chat_template.jinja2");
  ASSERT_TRUE(chat.ok());
  const Json arguments =
      Json::parse(R"({"a": "text, with {braces} and \"quotes\"", "b": 42, "c": -2.5, "d": true,
      "e": null, "f": [1, "two", [3], {"k": "v"}], "g": {"z": 1, "deep": {"er": []}}, "h": {}, "i": 1e22, "j": "",
      "k": "naïve 世界\n\ttab"})");
  ChatInput input;
  input.messages =
      Json::array({{{"role", "user"}, {"content", "Go"}},
                   {{"role", "assistant"},
                    {"content", ""},
                    {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", arguments}}}}}}}});
  const auto rendered = chat->Render(input);
  ASSERT_TRUE(rendered.ok()) << rendered.error().message;
  std::string prompt = JoinSegments(*rendered);
  const auto output = Parse(prompt.substr(prompt.find("<|tool_call>")));
  ASSERT_EQ(output.tool_calls.size(), 1);
  EXPECT_EQ(nlohmann::json(output.tool_calls[0].arguments), nlohmann::json(arguments));
}

}  // namespace
}  // namespace lapidary
