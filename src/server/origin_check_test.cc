#include "server/origin_check.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

constexpr bool kOnLoopback = true;

bool Passes(const OriginCheck& check, std::string_view host, std::string_view origin) {
  const ApiStatus refused = check.Check(host, origin);
  if (refused) {
    EXPECT_EQ(refused->status, 403);
  }
  return !refused;
}

TEST(OriginCheck, ProgramsWithoutAnOriginPass) {
  const OriginCheck check({}, "127.0.0.1", kOnLoopback);
  EXPECT_TRUE(Passes(check, "127.0.0.1:8000", ""));
  EXPECT_TRUE(Passes(check, "", ""));
}

TEST(OriginCheck, ThePageOfTheServerItselfPasses) {
  const OriginCheck check({}, "127.0.0.1", kOnLoopback);
  EXPECT_TRUE(Passes(check, "127.0.0.1:8000", "http://127.0.0.1:8000"));
  EXPECT_TRUE(Passes(check, "LocalHost:8000", "http://localhost:8000"));
  EXPECT_TRUE(Passes(check, "[::1]:8000", "http://[::1]:8000"));
  EXPECT_TRUE(Passes(check, "localhost", "http://localhost"));
  EXPECT_TRUE(Passes(check, "localhost:80", "http://localhost"));
  EXPECT_TRUE(Passes(check, "localhost:443", "https://localhost"));
}

TEST(OriginCheck, PagesFromElsewhereAreRefused) {
  const OriginCheck check({}, "127.0.0.1", kOnLoopback);
  for (const char* origin : {"https://evil.example", "null", "http://localhost:3000",
                             "http://127.0.0.1", "https://127.0.0.1:8000.evil.example", "file://",
                             "http://localhost:8000@evil.example", "nonsense", "://", "://x"}) {
    EXPECT_FALSE(Passes(check, "127.0.0.1:8000", origin)) << origin;
  }
  EXPECT_FALSE(Passes(check, "localhost:80", "https://localhost")) << "another port";
  EXPECT_FALSE(Passes(check, "", "http://localhost")) << "no Host to be the same as";
}

TEST(OriginCheck, OnLoopbackOnlyNamesOfThisMachineAreAnswered) {
  const OriginCheck check({}, "127.0.0.1", kOnLoopback);
  for (const char* host : {"localhost", "a.localhost:1", "127.0.0.1", "127.1.2.3:80", "[::1]"}) {
    EXPECT_TRUE(Passes(check, host, "")) << host;
  }
  for (const char* host :
       {"evil.example:8000", "127.0.0.1.evil.example", "127.evil.example", "127.0.0", "127.0.0.1.1",
        "127.0.0.", "127.0.0.1000", "localhost.evil.example", "notlocalhost", "[::2]", "[::1", ":",
        "10.0.0.1:8000"}) {
    EXPECT_FALSE(Passes(check, host, "")) << host;
  }
  // A rebound name is of the same origin, so only the Host tells.
  EXPECT_FALSE(Passes(check, "evil.example:8000", "http://evil.example:8000"));
}

TEST(OriginCheck, TheNameItWasToldToListenOnIsItsOwn) {
  const OriginCheck check({}, "Workbench", kOnLoopback);  // 127.0.1.1 on a Debian machine
  EXPECT_TRUE(Passes(check, "workbench:8000", "http://workbench:8000"));
  EXPECT_FALSE(Passes(check, "workbench.evil.example:8000", ""));
}

TEST(OriginCheck, ElsewhereAnyNameIsAnsweredButForeignPagesAreNot) {
  const OriginCheck check({}, "127.0.0.1", !kOnLoopback);
  EXPECT_TRUE(Passes(check, "gpu-7.lab.example:8000", ""));
  EXPECT_TRUE(Passes(check, "gpu-7.lab.example:8000", "http://gpu-7.lab.example:8000"));
  EXPECT_TRUE(Passes(check, "chat.example", "https://chat.example")) << "behind a TLS proxy";
  EXPECT_FALSE(Passes(check, "gpu-7.lab.example:8000", "https://evil.example"));
}

TEST(OriginCheck, AllowedHostsAreTheOnlyOnesOnEveryAddress) {
  for (const bool is_on_loopback : {kOnLoopback, !kOnLoopback}) {
    const OriginCheck check({}, "0.0.0.0", is_on_loopback, {"Api.example"});
    EXPECT_TRUE(Passes(check, "api.example:8000", "http://api.example:8000"));
    EXPECT_TRUE(Passes(check, "127.0.0.1:8000", ""));
    EXPECT_FALSE(Passes(check, "evil.example:8000", ""));
    EXPECT_FALSE(Passes(check, "api.example", "https://evil.example")) << "a page from elsewhere";
  }
  const OriginCheck any({}, "127.0.0.1", kOnLoopback, {"*"});
  EXPECT_TRUE(Passes(any, "whatever.example", ""));
}

TEST(OriginCheck, AllowedOriginsPassAndTheirHostsToo) {
  const OriginCheck check({"https://app.example"}, "127.0.0.1", kOnLoopback);
  EXPECT_TRUE(Passes(check, "127.0.0.1:8000", "https://app.example"));
  EXPECT_TRUE(Passes(check, "app.example", ""));
  EXPECT_FALSE(Passes(check, "127.0.0.1:8000", "http://app.example"));
  EXPECT_FALSE(Passes(check, "other.example", ""));
  EXPECT_EQ(check.CorsOrigin("https://app.example"), "https://app.example");
  EXPECT_EQ(check.CorsOrigin("https://other.example"), "");
  EXPECT_EQ(check.CorsOrigin(""), "");
}

TEST(OriginCheck, AStarAllowsEverything) {
  const OriginCheck check({"*"}, "127.0.0.1", kOnLoopback);
  EXPECT_TRUE(Passes(check, "evil.example", "https://evil.example"));
  EXPECT_TRUE(Passes(check, "127.0.0.1:8000", "null"));
  EXPECT_EQ(check.CorsOrigin("https://x.example"), "*");
}

TEST(OriginCheck, AnAllowedNullAllowsNoHost) {
  const OriginCheck check({"null"}, "127.0.0.1", kOnLoopback);
  EXPECT_TRUE(Passes(check, "localhost", "null"));
  EXPECT_FALSE(Passes(check, "evil.example", ""));
  EXPECT_FALSE(Passes(check, ":80", ""));
}

TEST(OriginCheck, FlagsThatAreNoOriginAreTold) {
  for (const char* text : {"*", "null", "https://app.example", "http://localhost:3000",
                           "chrome-extension://abcdef", "http://[::1]:80"}) {
    EXPECT_TRUE(IsOrigin(text)) << text;
  }
  for (const char* text : {"", "app.example", "https://", "://x", "https://app.example/",
                           "https://app.example/chat", "https://*.example", "a b", "http://a b"}) {
    EXPECT_FALSE(IsOrigin(text)) << text;
  }
}

}  // namespace
}  // namespace lapidary
