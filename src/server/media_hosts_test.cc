#include "server/media_hosts.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

const std::vector<std::string> kAllowed = {"Example.com", "files.example.org:8080", "10.0.0.7",
                                           "[fd00::7]:81"};

TEST(MediaHostsTest, AHostIsAllowedAsItIsWritten) {
  EXPECT_EQ(FindMediaHost(kAllowed, "example.COM", 443), HostAccess::kPublic);
  EXPECT_EQ(FindMediaHost(kAllowed, "example.com", 80), HostAccess::kPublic);
  EXPECT_EQ(FindMediaHost(kAllowed, "files.example.org", 8080), HostAccess::kPublic);
}

TEST(MediaHostsTest, AnAddressThatIsNamedMayBePrivate) {
  EXPECT_EQ(FindMediaHost(kAllowed, "10.0.0.7", 80), HostAccess::kAny);
  EXPECT_EQ(FindMediaHost(kAllowed, "[fd00::7]", 81), HostAccess::kAny);
}

TEST(MediaHostsTest, NothingElseIsAllowed) {
  EXPECT_EQ(FindMediaHost(kAllowed, "example.com", 8080), HostAccess::kNone);
  EXPECT_EQ(FindMediaHost(kAllowed, "files.example.org", 80), HostAccess::kNone);
  EXPECT_EQ(FindMediaHost(kAllowed, "example.com.evil.net", 80), HostAccess::kNone);
  EXPECT_EQ(FindMediaHost(kAllowed, "sub.example.com", 80), HostAccess::kNone);
  EXPECT_EQ(FindMediaHost(kAllowed, "10.0.0.70", 80), HostAccess::kNone);
  EXPECT_EQ(FindMediaHost({}, "example.com", 80), HostAccess::kNone);
}

TEST(MediaHostsTest, AnEntryThatIsNoHostIsAnError) {
  EXPECT_TRUE(CheckMediaHosts(kAllowed).ok());
  for (const char* entry : {"", "https://example.com", "example.com/path", "example.com:", "a b",
                            "example.com:70000", "[fd00::7", "*"}) {
    EXPECT_FALSE(CheckMediaHosts({entry}).ok()) << entry;
  }
}

}  // namespace
}  // namespace lapidary
