// overtok: the program. Every subcommand is a file of this folder; this one only lists them.
#include "tools/program.h"

int main(int argc, char** argv) {
  overtok::Program program;
  overtok::AddTrain(program);
  overtok::AddEval(program);
  overtok::AddPlan(program);
  overtok::AddTrace(program);
  overtok::AddCompare(program);
  overtok::AddBench(program);
  overtok::AddTokenize(program);
  overtok::AddTokenizer(program);
  overtok::AddData(program);
  overtok::AddConfig(program);
  overtok::AddReport(program);
  return program.Main(argc, argv);
}
