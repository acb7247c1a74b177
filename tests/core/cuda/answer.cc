// The library that libraries_test opens.
extern "C" int overtok_test_answer();
extern "C" int overtok_test_answer() { return 42; }
