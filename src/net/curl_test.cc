#include "net/curl.h"

#include <gtest/gtest.h>

namespace lapidary::net {
namespace {

bool AreSameOrigin(const std::string& one, const std::string& other) {
  return Url::Parse(one)->IsSameOrigin(*Url::Parse(other));
}

TEST(UrlTest, PartsAreAsLibcurlReadsThem) {
  const auto url = Url::Parse("HTTPS://user@Example.com/a%20b?c");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->Scheme(), "https");
  EXPECT_EQ(url->Port(), 443);
  EXPECT_TRUE(url->HasCredentials());
  EXPECT_FALSE(Url::Parse("http://example.com:8080/")->HasCredentials());
}

TEST(UrlTest, WhatIsNoAbsoluteUrlIsRefused) {
  for (const std::string text : {"", "/path", "example.com/x", "http://", "http://a b/"}) {
    EXPECT_FALSE(Url::Parse(text)) << text;
  }
  EXPECT_FALSE(Url::Parse(std::string("http://good.example\0.evil.example/", 35)));
}

TEST(UrlTest, AnOriginIsSchemeHostAndPort) {
  EXPECT_TRUE(AreSameOrigin("https://hub.example/a", "https://hub.example:443/b?c"));
  EXPECT_FALSE(AreSameOrigin("https://hub.example/a", "http://hub.example/a"));
  EXPECT_FALSE(AreSameOrigin("https://hub.example/a", "https://hub.example.evil/a"));
  EXPECT_FALSE(AreSameOrigin("https://hub.example/a", "https://hub.example:444/a"));
}

}  // namespace
}  // namespace lapidary::net
