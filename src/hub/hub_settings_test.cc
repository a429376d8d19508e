#include "hub/hub_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

namespace lapidary::hub {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

Result<HubSettings> Settings(const std::map<std::string, std::string>& variables) {
  return HubSettings::FromEnvironment([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

TEST(HubSettingsTest, TheCacheIsWhereHuggingfaceHubHasIt) {
  EXPECT_EQ(Settings({{"HOME", "/h"}})->cache, "/h/.cache/huggingface/hub");
  EXPECT_EQ(Settings({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/c"}})->cache, "/c/huggingface/hub");
  EXPECT_EQ(Settings({{"HOME", "/h"}, {"HF_HOME", "~/hf"}})->cache, "/h/hf/hub");
  EXPECT_EQ(Settings({{"HF_HOME", "/hf"}, {"HF_HUB_CACHE", "/x"}})->cache, "/x");
  EXPECT_EQ(Settings({{"HUGGINGFACE_HUB_CACHE", "/y"}})->cache, "/y");
  EXPECT_FALSE(Settings({}).ok());
}

TEST(HubSettingsTest, TheEndpointIsAnHttpAddress) {
  EXPECT_EQ(Settings({{"HOME", "/h"}})->endpoint, "https://huggingface.co");
  const auto settings = Settings({{"HOME", "/h"}, {"HF_ENDPOINT", "http://127.0.0.1:81/hub/"}});
  EXPECT_EQ(settings->endpoint, "http://127.0.0.1:81/hub");
  EXPECT_EQ(settings->Host(), "127.0.0.1");
  for (const char* endpoint : {"huggingface.co", "ftp://x", "file:///etc", "https://me:pw@host"}) {
    EXPECT_FALSE(Settings({{"HOME", "/h"}, {"HF_ENDPOINT", endpoint}}).ok()) << endpoint;
  }
}

TEST(HubSettingsTest, TheTokenIsAVariablesOrAFiles) {
  std::string name = testing::TempDir() + "settings-XXXXXX";
  const fs::path home = mkdtemp(name.data());
  std::ofstream(home / "token") << "hf_file\n";
  EXPECT_EQ(Settings({{"HF_HOME", home}})->token, "hf_file");
  EXPECT_EQ(Settings({{"HF_HOME", home}, {"HF_TOKEN", " hf_variable\n"}})->token, "hf_variable");
  EXPECT_EQ(Settings({{"HF_HOME", home}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}})->token, "");
  EXPECT_EQ(Settings({{"HF_HOME", "/nowhere"}})->token, "");
  // It becomes a line of a request.
  const auto two_lines = Settings({{"HF_HOME", home}, {"HF_TOKEN", "hf\r\nCookie: x"}});
  ASSERT_FALSE(two_lines.ok());
  EXPECT_THAT(two_lines.error().message, HasSubstr("HF_TOKEN"));
  fs::remove_all(home);
}

TEST(HubSettingsTest, OfflineAndTimeout) {
  EXPECT_FALSE(Settings({{"HOME", "/h"}})->is_offline);
  EXPECT_FALSE(Settings({{"HOME", "/h"}, {"HF_HUB_OFFLINE", "0"}})->is_offline);
  EXPECT_TRUE(Settings({{"HOME", "/h"}, {"HF_HUB_OFFLINE", "True"}})->is_offline);
  EXPECT_EQ(Settings({{"HOME", "/h"}, {"HF_HUB_DOWNLOAD_TIMEOUT", "5"}})->timeout.count(), 5);
  for (const char* timeout : {"0", "-1", "x", "5s", "99999999999"}) {
    EXPECT_FALSE(Settings({{"HOME", "/h"}, {"HF_HUB_DOWNLOAD_TIMEOUT", timeout}}).ok()) << timeout;
  }
}

}  // namespace
}  // namespace lapidary::hub
