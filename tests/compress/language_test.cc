// The language of codecs: what it takes, what the canonical words are, what the errors say.
#include "tests/compress/codecs_under_test.h"

namespace hora::testing {
namespace {

std::string error_of(std::string_view text) {
  auto made = make_codec(text);
  REQUIRE_FALSE(made);
  CHECK(made.error().kind == ErrorKind::invalid_argument);
  return made.error().message;
}

TEST_CASE("language: words that mean the same have the same canonical text") {
  CHECK(codec_of("int8")->text() == "int8");
  CHECK(codec_of(" int8 ( ) + ef ")->text() == "int8+ef");
  CHECK(codec_of("int8()+ef")->text() == "int8+ef");
  CHECK(codec_of("topk")->text() == "topk(ratio=0.01)");
  CHECK(codec_of("topk( ratio = 1e-2 ) +ef")->text() == "topk(ratio=0.01)+ef");
  CHECK(codec_of("topk(ratio=0.010)")->text() == "topk(ratio=0.01)");
  CHECK(codec_of("bf16+ef")->error_feedback());
  CHECK_FALSE(codec_of("bf16")->error_feedback());
}

TEST_CASE("language: every canonical text makes the same codec again") {
  for (const SharedCodec& codec : all_codecs()) {
    CHECK(codec_of(codec->text())->text() == codec->text());
    CHECK(codec->text().size() <= kMaxCodecText);
  }
}

TEST_CASE("language: kinds are what schedules rely on") {
  CHECK(codec_of("none")->traits().kind == CodecKind::summed);
  CHECK(codec_of("fp16")->traits().kind == CodecKind::hop);
  CHECK(codec_of("fp16")->traits().narrow);
  CHECK_FALSE(codec_of("bf16")->traits().narrow);
  CHECK(codec_of("int8")->traits().block == 256);
  CHECK(codec_of("topk")->traits().kind == CodecKind::gather);
}

TEST_CASE("language: an error says what does not make sense, and what would") {
  CHECK(error_of("zip") ==
        "codec 'zip': there is no codec of this name; there are: none, fp16, bf16, int8, topk");
  CHECK(error_of("") == "codec '': a name is missing at the end");
  CHECK(error_of("(ratio=1)") == "codec '(ratio=1)': a name is missing at '(ratio=1)'");
  CHECK(error_of("topk(") == "codec 'topk(': a key is missing at the end");
  CHECK(error_of("topk(ratio)") == "codec 'topk(ratio)': '=' is missing after 'ratio'");
  CHECK(error_of("topk(ratio=)") == "codec 'topk(ratio=)': the value of 'ratio' is missing");
  CHECK(error_of("topk(ratio=.1") == "codec 'topk(ratio=.1': ',' or ')' is missing at the end");
  CHECK(error_of("topk(ratio=.1,ratio=.2)") ==
        "codec 'topk(ratio=.1,ratio=.2)': 'ratio' is there twice");
  CHECK(error_of("int8+fe") == "codec 'int8+fe': after '+' comes 'ef', not 'fe'");
  CHECK(error_of("int8 ef") ==
        "codec 'int8 ef': nothing makes sense at 'ef'; write name(key=value,...) or "
        "name(key=value,...)+ef");
  CHECK(error_of("int8(block=32)") == "codec 'int8': there is no 'block'; it takes no keys");
  CHECK(error_of("topk(k=5)") == "codec 'topk': there is no 'k'; it takes ratio");
  CHECK(error_of("none+ef") == "codec 'none': it loses nothing that '+ef' could keep");
  CHECK(error_of(std::string(1000, 'x')).find("longer than 256 characters") != std::string::npos);
  for (const char* ratio : {"0", "-0.1", "0.51", "nan", "inf", "a", "0.1x"}) {
    CHECK(error_of("topk(ratio=" + std::string(ratio) + ")")
              .find("ratio must be a number above 0 and at most 0.5, not '" + std::string(ratio) +
                    "'") != std::string::npos);
  }
}

TEST_CASE("language: no text of up to four characters crashes, however strange") {
  const std::string alphabet = "it8(=),+ef \xff";
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::size_t i = random() % 9; i > 0; --i)
      text += alphabet[random() % alphabet.size()];
    auto made = make_codec(text);
    if (!made && made.error().message.empty()) FAIL(text);
  }
}

}  // namespace
}  // namespace hora::testing
