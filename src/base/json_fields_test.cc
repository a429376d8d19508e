#include "base/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace lapidary {
namespace {

using testing::HasSubstr;

std::string Nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(ParseJson, ReadsEveryKindOfValue) {
  const auto json = ParseJson(
      R"({"n":null,"t":true,"i":-3,"u":18446744073709551615,"d":0.5,"s":"\u00e9","a":[1,[2],{}],"o":{"x":{"y":1}}})",
      "kinds");
  ASSERT_TRUE(json.ok()) << json.error().message;
  EXPECT_EQ(
      json->dump(),
      "{\"a\":[1,[2],{}],\"d\":0.5,\"i\":-3,\"n\":null,\"o\":{\"x\":{\"y\":1}},\"s\":\"\u00e9\","
      "\"t\":true,\"u\":18446744073709551615}");
  EXPECT_EQ(*ParseJson("7", "scalar"), 7);
  EXPECT_EQ(*ParseJson(" [ ] ", "empty"), Json::array());
}

TEST(ParseJson, AgreesWithTheLibrarysOwnParserOnRandomValues) {
  uint64_t state = 1;
  const auto next = [&](uint64_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % bound;
  };
  const std::function<Json(int)> random_value = [&](int depth) -> Json {
    switch (next(depth > 4 ? 4 : 6)) {
      case 0:
        return nullptr;
      case 1:
        return static_cast<int64_t>(next(2000)) - 1000;
      case 2:
        return std::string(next(5), 'x') + "\"\\\n";
      case 3:
        return static_cast<double>(next(1000)) / 7;
      case 4: {
        Json array = Json::array();
        for (uint64_t idx = next(5); idx > 0; --idx) array.push_back(random_value(depth + 1));
        return array;
      }
      default: {
        Json object = Json::object();
        for (uint64_t idx = next(5); idx > 0; --idx) {
          object[fmt::format("k{}", next(9))] = random_value(depth + 1);
        }
        return object;
      }
    }
  };
  for (int round = 0; round < 500; ++round) {
    const Json value = random_value(0);
    const auto parsed = ParseJson(value.dump(round % 3 == 0 ? 2 : -1), "random");
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    ASSERT_EQ(*parsed, value);
  }
}

TEST(ParseJson, RefusesWhatIsNotOneJsonValue) {
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\":1}x", "{\"a\" 1}", "nul", "\"\x80\"",
                           "\"\xed\xa0\x80\"", "\"\n\"", "1e999", "01", "[1 2]", "{1:2}"}) {
    const auto json = ParseJson(text, "the file");
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_THAT(json.error().message, HasSubstr("the file: not valid JSON"));
  }
}

TEST(ParseJson, TakesExactlyTheAllowedDepth) {
  EXPECT_TRUE(ParseJson(Nested(200), "deep").ok());
  const auto json = ParseJson(Nested(201), "deep");
  ASSERT_FALSE(json.ok());
  EXPECT_EQ(json.error().message, "deep: JSON nested deeper than 200 levels");
  EXPECT_TRUE(ParseJson(Nested(3), "deep", {.max_depth = 3}).ok());
  EXPECT_FALSE(ParseJson(Nested(4), "deep", {.max_depth = 3}).ok());
}

TEST(ParseJson, RefusesRepeatedNamesWhereAskedToAndElseKeepsTheLast) {
  const char* text = R"({"a":[1,2],"b":{"c":1,"c":2},"a":3})";
  EXPECT_EQ(*ParseJson(text, "twice"), Json({{"a", 3}, {"b", {{"c", 2}}}}));
  const auto strict = ParseJson(text, "twice", {.unique_names = true});
  ASSERT_FALSE(strict.ok());
  EXPECT_EQ(strict.error().message, "twice: 'c' is there twice");
  EXPECT_TRUE(ParseJson(R"([{"a":1},{"a":1}])", "apart", {.unique_names = true}).ok());
}

// Quadratic work on any of these would outlast the test's time limit by far.
TEST(ParseJson, EndsOnHostileInput) {
  EXPECT_FALSE(ParseJson(std::string(4 << 20, '['), "open arrays").ok());
  EXPECT_FALSE(ParseJson(std::string(4 << 20, '{'), "open objects").ok());
  std::string half_deep;
  for (int idx = 0; idx < 20000; ++idx) half_deep += Nested(199) + ",";
  EXPECT_EQ(ParseJson("[" + half_deep + "0]", "half deep")->size(), 20001u);

  std::string members, objects;
  for (int idx = 0; idx < 600'000; ++idx) {
    members += fmt::format("\"key{}\":{},", idx, idx);
    objects += fmt::format("\"key{}\":{{}},", idx);
  }
  EXPECT_EQ(ParseJson("{" + members + "\"z\":0}", "members")->size(), 600'001u);
  // nlohmann's callback parser scans the parent after every object.
  EXPECT_EQ(ParseJson("{" + objects + "\"z\":0}", "objects")->size(), 600'001u);
}

TEST(ParseJson, KeepsMessagesShortWhateverTheTextHolds) {
  const auto json = ParseJson("\"" + std::string(4 << 20, 'x'), "long");
  ASSERT_FALSE(json.ok());
  EXPECT_LT(json.error().message.size(), 600u);
}

TEST(ShortUtf8, CutsBetweenCharacters) {
  EXPECT_EQ(ShortUtf8("abc", 3), "abc");
  EXPECT_EQ(ShortUtf8("abcd", 3), "abc...");
  EXPECT_EQ(ShortUtf8("a\u00e9\u00e9", 2), "a...");
  EXPECT_EQ(ShortUtf8("a\u00e9\u00e9", 3), "a\u00e9...");
  EXPECT_EQ(ShortUtf8("\U0001f600\U0001f600", 7), "\U0001f600...");
}

TEST(JsonFields, ReadsValuesAndFallbacks) {
  const Json object = Json::parse(
      R"({"i":5,"f":512.0,"d":0.25,"b":true,"s":"x","l":["a","b"],"o":{"k":1},"null":null})");
  JsonFields fields(object, "file");
  EXPECT_EQ(fields.Int("i", {.min = 5, .max = 5}), 5);
  EXPECT_EQ(fields.Int("f", {}), 512);  // an integral float counts as one
  EXPECT_EQ(fields.Number("d", {}), 0.25);
  EXPECT_EQ(fields.Number("i", {}), 5.0);
  EXPECT_TRUE(fields.BoolOr("b", false));
  EXPECT_EQ(fields.StringOr("s", ""), "x");
  EXPECT_THAT(*fields.OptionalStrings("l"), testing::ElementsAre("a", "b"));
  EXPECT_EQ((*fields.OptionalObject("o"))["k"], 1);
  for (const char* key : {"null", "absent"}) {
    EXPECT_EQ(fields.IntOr(key, 7, {}), 7);
    EXPECT_EQ(fields.NumberOr(key, 0.5, {}), 0.5);
    EXPECT_TRUE(fields.BoolOr(key, true));
    EXPECT_EQ(fields.StringOr(key, "y"), "y");
    EXPECT_FALSE(fields.OptionalStrings(key).has_value());
    EXPECT_EQ(fields.OptionalObject(key), nullptr);
  }
  EXPECT_TRUE(fields.status().ok());
}

// The message of the one problem `read` runs into.
std::string ProblemOf(const char* value, const std::function<void(JsonFields&)>& read) {
  const Json object = Json::parse(fmt::format(R"({{"k":{}}})", value));
  JsonFields fields(object, "file");
  read(fields);
  return fields.status().ok() ? "none" : fields.status().error().message;
}

TEST(JsonFields, NamesTheFieldAndTheLimits) {
  const auto read_int = [](JsonFields& fields) { fields.Int("k", {.min = 1, .max = 9}); };
  EXPECT_EQ(ProblemOf("null", read_int), "file: k is missing");
  for (const char* value : {"\"5\"", "5.5", "true", "[5]", "{}", "1e300", "-1e300"}) {
    EXPECT_EQ(ProblemOf(value, read_int), "file: k must be an integer") << value;
  }
  for (const char* value : {"0", "-1", "10", "9223372036854775807", "-9223372036854775808"}) {
    EXPECT_EQ(ProblemOf(value, read_int),
              fmt::format("file: k = {} is out of range [1, 9]", value));
  }
  EXPECT_EQ(ProblemOf("18446744073709551615", read_int), "file: k is out of range [1, 9]");

  const auto read_number = [](JsonFields& fields) { fields.Number("k", {.min = 0, .max = 1}); };
  EXPECT_EQ(ProblemOf("null", read_number), "file: k is missing");
  EXPECT_EQ(ProblemOf("\"1\"", read_number), "file: k must be a number");
  EXPECT_EQ(ProblemOf("1.5", read_number), "file: k = 1.5 is out of range [0, 1]");
  EXPECT_EQ(ProblemOf("1", [](JsonFields& fields) { fields.BoolOr("k", true); }),
            "file: k must be true or false");
  EXPECT_EQ(ProblemOf("1", [](JsonFields& fields) { fields.StringOr("k", ""); }),
            "file: k must be a string");
  EXPECT_EQ(ProblemOf("[\"a\",1]", [](JsonFields& fields) { fields.OptionalStrings("k"); }),
            "file: k must be a list of strings");
  EXPECT_EQ(ProblemOf("[]", [](JsonFields& fields) { fields.OptionalObject("k"); }),
            "file: k must be an object");
}

TEST(JsonFields, KeepsTheFirstProblemAndGoesOnWithHarmlessValues) {
  const Json object = Json::parse(R"({"a":-1,"b":"x"})");
  JsonFields fields(object, "file");
  EXPECT_EQ(fields.Int("a", {.min = 3, .max = 9}), 3);
  EXPECT_EQ(fields.Int("b", {.min = 4, .max = 9}), 4);
  fields.Fail("a third one");
  EXPECT_EQ(fields.status().error().message, "file: a = -1 is out of range [3, 9]");
}

TEST(JsonFields, TreatsAnythingButAnObjectAsOneProblem) {
  for (const char* text : {"null", "[]", "1", "\"x\""}) {
    const Json value = Json::parse(text);
    JsonFields fields(value, "file");
    EXPECT_EQ(fields.IntOr("k", 7, {}), 7);
    EXPECT_EQ(fields.status().error().message, "file: expected a JSON object");
  }
}

TEST(JsonFields, KeepsMessagesShortWhateverTheTextHolds) {
  const Json object = Json::object();
  JsonFields fields(object, "file");
  fields.Fail(std::string(1 << 20, 'x'));
  EXPECT_LT(fields.status().error().message.size(), 600u);
}

}  // namespace
}  // namespace lapidary
