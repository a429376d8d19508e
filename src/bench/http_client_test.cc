#include "bench/http_client.h"

#include <gtest/gtest.h>

namespace lapidary::bench {
namespace {

TEST(BaseUrl, IsTakenApart) {
  const BaseUrl url = *ParseBaseUrl("http://localhost:8000");
  EXPECT_EQ(url.host, "localhost");
  EXPECT_EQ(url.port, "8000");
  EXPECT_EQ(url.prefix, "");
  EXPECT_EQ(url.HostHeader(), "localhost:8000");
  EXPECT_EQ(ParseBaseUrl("http://example.org/")->port, "80");
  EXPECT_EQ(ParseBaseUrl("http://example.org/")->prefix, "");
  EXPECT_EQ(ParseBaseUrl("http://example.org/a/b/")->prefix, "/a/b");
  EXPECT_EQ(ParseBaseUrl("http://example.org/v1/")->prefix, "");
  EXPECT_EQ(ParseBaseUrl("http://example.org/a/v1")->prefix, "/a");
  EXPECT_FALSE(ParseBaseUrl("http://example.org/")->is_https);
  EXPECT_TRUE(ParseBaseUrl("https://example.org/v1")->is_https);
  EXPECT_EQ(ParseBaseUrl("https://example.org/v1")->Origin(), "https://example.org:443");
  EXPECT_EQ(ParseBaseUrl("http://[::1]:81")->host, "::1");
  EXPECT_EQ(ParseBaseUrl("http://[::1]:81")->HostHeader(), "[::1]:81");
}

TEST(BaseUrl, RefusesWhatItCannotReach) {
  for (const char* text : {"", "localhost:8000", "ftp://localhost", "https://", "http://:80",
                           "http://a:", "http://a:x", "http://a:0", "http://a:65536",
                           "http://a:8 0", "http://[::1", "http://[::1]81", "http://a b/"}) {
    EXPECT_FALSE(ParseBaseUrl(text).ok()) << text;
  }
}

}  // namespace
}  // namespace lapidary::bench
