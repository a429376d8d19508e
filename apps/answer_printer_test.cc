#include "apps/answer_printer.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

TEST(WithoutControls, WhatSteersATerminalIsLeftOut) {
  EXPECT_EQ(WithoutControls("\x1b[2J\x1b]0;title\x07text\r\b\x7f"), "[2J]0;titletext");
  EXPECT_EQ(WithoutControls("\xc2\x9bH"), "H");  // a control sequence in one character
  EXPECT_EQ(WithoutControls(std::string_view("a\0b", 3)), "ab");
}

TEST(WithoutControls, TextLinesAndTabsStay) {
  constexpr std::string_view kText = "one\n\ttwo \xc3\xa4 \xc2\xa0 \xf0\x9f\x92\x8e \xe2\x82\xac";
  EXPECT_EQ(WithoutControls(kText), kText);
  EXPECT_EQ(WithoutControls("cut \xc2"), "cut \xc2");
}

}  // namespace
}  // namespace lapidary
