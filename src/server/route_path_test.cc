#include "server/route_path.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

TEST(RoutePath, ASlashAtTheEndGoes) {
  EXPECT_EQ(CanonicalPath("/v1/models/"), "/v1/models");
  EXPECT_EQ(CanonicalPath("/v1/chat/completions//"), "/v1/chat/completions");
  EXPECT_EQ(CanonicalPath("/"), "/");
  EXPECT_EQ(CanonicalPath(""), "");
}

TEST(RoutePath, PathsWithoutTheirVersionGetIt) {
  EXPECT_EQ(CanonicalPath("/chat/completions"), "/v1/chat/completions");
  EXPECT_EQ(CanonicalPath("/models/"), "/v1/models");
  EXPECT_EQ(CanonicalPath("/responses/resp_1/input_items"), "/v1/responses/resp_1/input_items");
  EXPECT_EQ(CanonicalPath("/audio/transcriptions"), "/v1/audio/transcriptions");
  for (const char* path :
       {"/v1/messages", "/tokenize", "/metrics", "/api/chat", "/chat", "/modelsx"}) {
    EXPECT_EQ(CanonicalPath(path), path);
  }
}

TEST(RoutePath, NamesInPathsAreFound) {
  EXPECT_EQ(RoutePattern("/v1/models"), "/v1/models");
  EXPECT_EQ(RoutePattern("/v1/models/org/model"), "/v1/models/{id}");
  EXPECT_EQ(NameInPath("/v1/models/org/model"), "org/model");
  EXPECT_EQ(NameInPath("/v1/models/org%2Fmodel"), "org/model");
  EXPECT_EQ(RoutePattern("/v1/responses/resp_1"), "/v1/responses/{id}");
  EXPECT_EQ(RoutePattern("/v1/responses/resp_1/input_items"), "/v1/responses/{id}/input_items");
  EXPECT_EQ(NameInPath("/v1/responses/resp_1/input_items"), "resp_1");
  EXPECT_EQ(RoutePattern("/v1/responses/input_tokens"), "/v1/responses/input_tokens");
  EXPECT_EQ(NameInPath("/v1/responses/input_tokens"), "");
  EXPECT_EQ(RoutePattern("/v1/chat/completions"), "/v1/chat/completions");
}

}  // namespace
}  // namespace lapidary
