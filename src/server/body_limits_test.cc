#include "server/body_limits.h"

#include <gtest/gtest.h>

#include <string>

namespace lapidary {
namespace {

// {"parts": ...} around a part whose * is 4,000 bytes long.
std::string Body(std::string part) {
  part.replace(part.find('*'), 1, std::string(4000, 'A'));
  return R"({"parts": )" + part + "}";
}

int StatusOf(const std::string& body, const BodyLimits& limits) {
  const ApiStatus error = CheckBodySize(body, limits);
  return error ? error->status : 200;
}

TEST(BodyLimits, MediaHaveABudgetBesideThatOfTheText) {
  for (const char* part :
       {R"({"url": "data:image/png;base64,*"})", R"({"type": "x", "data" : "*"})",
        R"([1, {"image_url": "data:*"}])", R"({"a": "\"{", "data":"*"})"}) {
    const std::string body = Body(part);
    EXPECT_GE(CountMediaBytes(body), 4000u) << part;
    EXPECT_EQ(StatusOf(body, {.max_text_bytes = 200, .max_media_bytes = 5000}), 200) << part;
    EXPECT_EQ(StatusOf(body, {.max_text_bytes = 200, .max_media_bytes = 3000}), 413) << part;
    EXPECT_EQ(StatusOf(body, {.max_text_bytes = 200, .max_media_bytes = 0}), 413) << part;
    EXPECT_EQ(StatusOf(body, {.max_text_bytes = 8000, .max_media_bytes = 0}), 200) << part;
  }
}

TEST(BodyLimits, TextIsNoMedium) {
  for (const char* part :
       {R"("*")", R"(["data", "*"])", R"(["data:*"])", R"({"text": "*"})", R"({"data": ["*"]})",
        R"({"data": 1, "text": "*"})", R"({"data:*": 1})"}) {
    EXPECT_EQ(CountMediaBytes(Body(part)), 0u) << part;
    EXPECT_EQ(StatusOf(Body(part), {.max_text_bytes = 200, .max_media_bytes = 5000}), 413) << part;
  }
}

TEST(BodyLimits, BrokenTextIsCountedWithinItsEnds) {
  for (const char* text :
       {"", "\"", "{\"data\":\"", "{\"data\":\"\\", ":\"data:", "{\"data\":\"x\\\""}) {
    EXPECT_LE(CountMediaBytes(text), std::string_view(text).size()) << text;
  }
}

}  // namespace
}  // namespace lapidary
