// What launch variables mean, as a table: who may join a world, who runs alone and who is refused.
#include "core/comm/launch.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace overtok {
namespace {

class Variables final : public Environment {
 public:
  explicit Variables(std::map<std::string, std::string> values) : values_(std::move(values)) {}
  const char* Get(const char* name) const override {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : found->second.c_str();
  }

 private:
  std::map<std::string, std::string> values_;
};

struct Row {
  std::string name;
  std::map<std::string, std::string> variables;
  std::string launcher;
  int rank, size, local_rank;
};

TEST(ReadLaunch, TellsHowTheProcessWasStarted) {
  const std::vector<Row> rows = {
      {"nothing", {}, "none", 0, 1, 0},
      {"mpirun",
       {{"OMPI_COMM_WORLD_RANK", "3"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"PMIX_RANK", "3"}},
       "mpirun",
       3,
       4,
       1},
      // mpirun's helper on another node is itself a task of srun.
      {"mpirun in a Slurm job",
       {{"OMPI_COMM_WORLD_RANK", "5"},
        {"OMPI_COMM_WORLD_SIZE", "8"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_PROCID", "0"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_NTASKS", "2"}},
       "mpirun",
       5,
       8,
       1},
      {"mpirun -n 1",
       {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
       "mpirun",
       0,
       1,
       0},
      {"another MPI's mpirun",
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}},
       "mpirun",
       1,
       2,
       1},
      {"srun --mpi=pmi2",
       {{"PMI_RANK", "1"},
        {"PMI_SIZE", "2"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_PROCID", "1"},
        {"SLURM_LOCALID", "1"}},
       "srun",
       1,
       2,
       1},
      {"srun --mpi=pmix",
       {{"PMIX_RANK", "2"},
        {"SLURM_STEP_ID", "4"},
        {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_NTASKS", "8"},
        {"SLURM_PROCID", "2"},
        {"SLURM_LOCALID", "0"}},
       "srun",
       2,
       4,
       0},
      {"PMIx without Slurm: only MPI knows the size", {{"PMIX_RANK", "1"}}, "mpirun", 1, 0, 0},
      {"the batch script itself",
       {{"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
       "none",
       0,
       1,
       0},
      {"the batch script, its step numbered",
       {{"SLURM_STEP_ID", "4294967291"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
       "none",
       0,
       1,
       0},
      {"an interactive step's shell",
       {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
       "none",
       0,
       1,
       0},
      {"srun -n 1",
       {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}},
       "srun",
       0,
       1,
       0},
      {"torchrun of one", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "none", 0, 1, 0},
      {"mpirun wins over torchrun's variables",
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"RANK", "0"},
        {"WORLD_SIZE", "2"}},
       "mpirun",
       1,
       2,
       0},
      {"a rank without a size is nobody's", {{"RANK", "3"}}, "none", 0, 1, 0},
  };
  for (const Row& row : rows) {
    const auto facts = ReadLaunch(Variables(row.variables));
    ASSERT_TRUE(facts.ok()) << row.name << ": " << facts.status();
    EXPECT_EQ(facts->launcher, row.launcher) << row.name;
    EXPECT_EQ(facts->rank, row.rank) << row.name;
    EXPECT_EQ(facts->size, row.size) << row.name;
    EXPECT_EQ(facts->local_rank, row.local_rank) << row.name;
  }
}

TEST(ReadLaunch, RefusesWhatLooksLikeManyRanksAndIsNot) {
  struct Refusal {
    std::map<std::string, std::string> variables;
    std::string part;  // of the message
  };
  const std::vector<Refusal> rows = {
      {{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}}, "srun --mpi=list"},
      {{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}}, "started 4"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}}, "mpirun -n 4"},
      {{{"OMPI_COMM_WORLD_RANK", "1"}}, "OMPI_COMM_WORLD_SIZE is not"},
      {{{"PMI_SIZE", "2"}}, "PMI_RANK is not"},
      {{{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}, "PMI_RANK=2 and PMI_SIZE=2 contradict"},
      {{{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK=x"},
      {{{"OMPI_COMM_WORLD_RANK", "-1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK=-1"},
      {{{"PMIX_RANK", "4"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "4"}}, "PMIX_RANK=4"},
  };
  for (const Refusal& row : rows) {
    const auto facts = ReadLaunch(Variables(row.variables));
    ASSERT_FALSE(facts.ok()) << row.part;
    EXPECT_NE(std::string(facts.status().message()).find(row.part), std::string::npos)
        << facts.status();
  }
}

TEST(ReadLaunch, KeepsWhatSlurmSaysOfTheJob) {
  const auto facts = ReadLaunch(Variables({{"SLURM_JOB_ID", "77"},
                                           {"SLURM_RESTART_COUNT", "2"},
                                           {"SLURM_JOB_NODELIST", "n[1-2]"},
                                           {"SLURM_UNRELATED", "x"}}));
  ASSERT_TRUE(facts.ok());
  const std::map<std::string, std::string> expected = {
      {"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "2"}, {"SLURM_JOB_NODELIST", "n[1-2]"}};
  EXPECT_EQ(facts->job, expected);
  EXPECT_FALSE(facts->host.empty());
}

TEST(ReadLaunch, PresumesARankOfProcessesItRefuses) {
  EXPECT_EQ(PresumedRank(Variables(std::map<std::string, std::string>())), 0);
  EXPECT_EQ(PresumedRank(Variables({{"RANK", "3"}, {"WORLD_SIZE", "4"}})), 3);
  EXPECT_EQ(PresumedRank(Variables({{"RANK", "3"}, {"HOME", "/"}})), 0);
  EXPECT_EQ(PresumedRank(
                Variables({{"SLURM_PROCID", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "4"}})),
            2);
  EXPECT_EQ(PresumedRank(Variables({{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}})), 0);
}

TEST(ThreadWarning, SpeaksWhereThreadsShareCores) {
  LaunchFacts facts;
  facts.host = "north";
  facts.local_size = 4;
  EXPECT_EQ(ThreadWarning(facts, 2, 8, 8), "");
  EXPECT_NE(ThreadWarning(facts, 3, 8, 8).find("OMP_NUM_THREADS=2"), std::string::npos);
  EXPECT_NE(ThreadWarning(facts, 1, 2, 2).find("fewer ranks"), std::string::npos);
  EXPECT_NE(ThreadWarning(facts, 4, 1, 64).find("on the 1 core it is bound to"), std::string::npos);
  facts.local_size = 1;
  EXPECT_EQ(ThreadWarning(facts, 8, 8, 8), "");
}

}  // namespace
}  // namespace overtok
